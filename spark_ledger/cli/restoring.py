"""What has to be done after ZooKeeper was restored from a backup; see ``ledger cluster restored``.

The counter of ledger ids went back, so ids would be given again under which bookies hold entries
of ledgers that the metadata no longer know. No data would be mixed (rule P20): the bookies would
refuse the new ledgers. And bookies that have started since refuse to start: they know more than
the cluster does. Both are mended by asking the bookies, which have lost nothing.

A bookie that was formatted since the backup is not in it, and runs on: it is asked too, and named.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from spark_ledger.errors import BookieUnavailableError, ConfigurationError, LedgerError
from spark_ledger.limits.metadata import (
    METADATA_TIMEOUT_S,
    RESTORED_IDS_MAX,
    RESTORED_IDS_SKIPPED,
)
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.cookies import accept_newer_starts
from spark_ledger.metadata.ledger_ids import next_counted, raise_counter
from spark_ledger.metadata.ledgers import LedgerStore
from spark_ledger.repair.nodes import begin_check, leaving
from spark_ledger.transport.base import Transport
from spark_ledger.types import BookieId, BookieState


class Restored(NamedTuple):
    """What was found and done. ``next_ids``: each bookie's next ledger id. ``without_cookie``: who
    serves, and is not in the backup."""

    next_ledger_id_before: int
    next_ledger_id: int
    ledgers_in_metadata: int
    next_ids: Mapping[BookieId, int]
    without: Sequence[BookieId]
    may_start: Sequence[BookieId]
    without_cookie: Sequence[BookieId] = ()


async def accept_restored(
    store: MetadataStore, transport: Transport, without: Collection[str]
) -> Restored:
    """Let bookies start again, give no id again, and have repair look for copies that have moved
    since the backup. Repeating it is safe.

    Raises ConfigurationError if ``without`` names a stranger, BookieUnavailableError if a bookie
    does not answer, or says what cannot be; bookies may start from then on, and the ids are as they
    were.
    """
    registry = BookieRegistry(store)
    registered = {each for state in BookieState for each in (await registry.names(state)).value}
    members = await registry.list_cookies()
    # One that was decommissioned, and not stopped yet, is to have none.
    without_cookie = sorted(registered - set(members) - await leaving(store))
    members = sorted({*members, *without_cookie})
    unknown = sorted(set(without) - set(members))
    if unknown:
        raise ConfigurationError(f"bookie {unknown[0]!r} is not part of this cluster")
    may_start = await accept_newer_starts(store)  # first: a bookie that is down cannot answer
    asked = [bookie_id for bookie_id in members if bookie_id not in without]
    answers = await asyncio.gather(*(_ask(transport, bookie_id) for bookie_id in asked))
    next_ids = dict(zip(asked, answers, strict=True))
    silent = [bookie_id for bookie_id, next_id in next_ids.items() if not next_id]
    if silent:
        raise BookieUnavailableError(
            f"{', '.join(silent)} did not say which ledgers they hold, so no ids were passed over: "
            f"{_remedies(silent, without_cookie)} and run this again, or leave out those that are "
            "gone for good with --without-bookie ID"
        )
    await begin_check(store, time.time_ns() // 1_000_000)
    ledgers = await LedgerStore(store).list()
    named = max((ledger_id + 1 for ledger_id in ledgers), default=1)
    _check(next_ids, max(named, await next_counted(store)))
    highest = max([*answers, named])
    before, now = await raise_counter(store, highest + RESTORED_IDS_SKIPPED)
    left_out = sorted(map(BookieId, without))
    return Restored(before, now, len(ledgers), next_ids, left_out, may_start, without_cookie)


def _remedies(silent: Sequence[BookieId], without_cookie: Collection[BookieId]) -> str:
    """What makes them answer: one without a cookie is refused at its start."""
    unknown = [each for each in silent if each in without_cookie]
    said = ["start them (they may start now)"] if len(silent) > len(unknown) else []
    if unknown:
        said.append(
            f"for {', '.join(unknown)}, formatted after the backup, stop what runs, run `ledger "
            "bookie relocate --config FILE` there, start it"
        )
    return "; ".join(said)


def _check(next_ids: Mapping[BookieId, int], known: int) -> None:
    """Refuse an answer that cannot be, given that the metadata know of no id from ``known`` on: ids
    are passed over for good."""
    for bookie_id, next_id in next_ids.items():
        if next_id > known + RESTORED_IDS_MAX:
            raise BookieUnavailableError(
                f"{bookie_id} says that it knows ledger {next_id - 1}, and the metadata know none "
                f"above {known - 1}: that cannot be, so no ids were passed over; the bookie lies "
                f"or its disk is damaged: leave it out with --without-bookie {bookie_id}"
            )


async def _ask(transport: Transport, bookie_id: BookieId) -> int:
    """The bookie's next ledger id; 0 if it does not say."""
    try:
        words = await transport.describe(bookie_id, timeout_s=METADATA_TIMEOUT_S)
    except LedgerError:
        return 0
    return words.next_ledger_id
