"""Opens the streams that the tasks of a write wrote to, for its commit, and gives up handles that
fail for good, in tasks too.

The commit runs in a process beside Spark's driver. One that Spark has just made has no handle,
nor a connection, and looks both up in the middle of a query that runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from connector import sessions
from connector.options import WriteOptions
from connector.retry import RetryBudget
from spark_ledger.errors import MetadataRestoredError, NoSuchStreamError, RetryableError
from spark_ledger.limits.connector import METADATA_LAG_S, RETRY_S

if TYPE_CHECKING:
    from spark_ledger.stream.blocking import Stream

P = ParamSpec("P")
R = TypeVar("R")


class _Writer(Protocol):
    _options: WriteOptions


W = TypeVar("W", bound=_Writer)


def starts_anew_if_restored(
    work: Callable[Concatenate[W, P], R],
) -> Callable[Concatenate[W, P], R]:
    """A method decorator: a task or commit that finds that ZooKeeper was restored fails, and so
    does each later one with the same handles (rules T5 and T8). Spark uses the process again: so
    the connection is given up with them, and the next one begins with what is there."""

    @functools.wraps(work)
    def call(self: W, /, *given: P.args, **named: P.kwargs) -> R:
        try:
            return work(self, *given, **named)
        except MetadataRestoredError:
            sessions.discard(self._options.connection)
            raise

    return call


def written_streams(options: WriteOptions, written: Sequence[tuple[str, str]]) -> list[Stream]:
    """The handles of the streams with these names and ids, and of no later ones (rule T7).

    A store that is away is waited for. A stream may have been made just now, and the metadata
    server that answers here lags: so one that is not there is looked for again. All of them share
    both waits. Raises NoSuchStreamError, MetadataUnavailableError.
    """
    operation = f"{options.subject}: opening for the commit"
    lag, outage = RetryBudget(operation, METADATA_LAG_S), RetryBudget(operation, RETRY_S)
    opened: list[Stream] = []
    while len(opened) < len(written):
        name, stream_id = written[len(opened)]
        try:
            opened.append(sessions.stream(options.connection, name, stream_id))
        except NoSuchStreamError as error:
            lag.pause_or_raise(error)
        except RetryableError as error:
            outage.pause_or_raise(error)
    return opened
