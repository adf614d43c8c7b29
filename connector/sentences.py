"""Makes the sentence of an error the first that a user sees, without frames of this package.

Spark's Python processes send the traceback of an error to the JVM, and it becomes the message of
the exception that the user gets: forty lines, and the sentence at the end. They send the error
alone if an environment variable says so, and end after it. So the variable is set when an error
of ours leaves the connector, in such a process only. Other errors keep their traceback.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import Final, ParamSpec, TypeVar

from spark_ledger.errors import LedgerError

C = TypeVar("C", bound=type)
P = ParamSpec("P")

logger = logging.getLogger(__name__)

HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"
"""Read by ``pyspark.util.handle_worker_exception``, in 4.2 and 4.3."""


def one_sentence(*names: str) -> Callable[[C], C]:
    """A class decorator: errors of ours that leave these methods are shown without traceback."""

    def decorate(cls: C) -> C:
        for name in names:
            setattr(cls, name, _wrapped(cls.__dict__[name]))
        return cls

    return decorate


def _wrapped(method: Callable[P, object]) -> Callable[P, object]:
    @functools.wraps(method)
    def call(*given: P.args, **named: P.kwargs) -> object:
        try:
            result = method(*given, **named)
        except LedgerError:
            _hide_traceback()
            raise
        return _iterated(result) if isinstance(result, Iterator) else result

    return call


def _iterated(items: Iterator[object]) -> Iterator[object]:
    try:
        yield from items
    except LedgerError:
        _hide_traceback()
        raise


def _hide_traceback() -> None:
    logger.info("the traceback of the error that Spark shows", exc_info=True)
    if is_worker():
        os.environ[HIDE_TRACEBACK] = "1"


def is_worker() -> bool:
    """Whether this is a process that Spark started to run Python, and ends after an error."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
