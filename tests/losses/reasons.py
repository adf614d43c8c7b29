"""Why ledgers lack copies still: which bookies lack what, and what repair says of it."""

from __future__ import annotations

import time
from collections.abc import Iterable

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import LedgerError, NotFoundError
from spark_ledger.metadata.json_nodes import read_node
from spark_ledger.metadata.repair_locks import lock_path
from spark_ledger.metadata.unsettled import id_path
from spark_ledger.repair.held import held_parts
from spark_ledger.repair.nodes import FAILED_PATH, PRIORITIES, FailedRepair, Mark, mark_root
from spark_ledger.repair.plan import final_fragments, lane_copies
from spark_ledger.types import LedgerId, LedgerMetadata

_ANSWER_S = 5.0


async def reasons(client: LedgerClient, ledger_ids: Iterable[LedgerId]) -> list[str]:
    """A line for each ledger of which a bookie that its metadata name lacks entries."""
    found: list[str] = []
    for ledger_id in sorted(ledger_ids):
        try:
            lacking = await _lacking(client, await client.ledger_metadata(ledger_id))
            if lacking:
                told = [*lacking, *await _told(client, ledger_id)]
                found.append(f"ledger {ledger_id}: {'; '.join(told)}")
        except LedgerError as error:
            found.append(f"ledger {ledger_id} cannot be looked at: {error!r}")
    return found


async def _lacking(client: LedgerClient, ledger: LedgerMetadata) -> list[str]:
    """Who lacks what of the final fragments, by what the bookies say."""
    found = []
    for fragment in final_fragments(ledger):
        for index, bookie_id in enumerate(fragment.bookies):
            lanes = lane_copies(ledger, fragment, index, lost=())
            parts = held_parts(
                client.context.transport,
                bookie_id,
                ledger.ledger_id,
                fragment.first,
                fragment.last,
                timeout_s=_ANSWER_S,
            )
            async for part in parts:
                if part.ranges is None:
                    found.append(f"{bookie_id} does not say what it holds")
                    break
                for lane in part.missing(lanes):
                    what = f"{lane.first}..{lane.last} by {lane.stride}"
                    found.append(f"{bookie_id} lacks {what}; {', '.join(lane.present)} should not")
    return found


async def _told(client: LedgerClient, ledger_id: LedgerId) -> list[str]:
    """Its marks, its lock, and what `ledger autorecovery status` says of it."""
    store, found = client.store, []
    for copies in PRIORITIES:
        mark = await read_node(store, Mark, id_path(mark_root(copies), ledger_id))
        if mark is not None:
            found.append(
                f"marked with {copies} copies left, lost {list(mark.value.bookies)}, "
                f"version {mark.version}"
            )
    if not found:
        found.append("not marked: nobody knows")
    try:
        own = await store.is_own(lock_path(ledger_id))
        found.append(f"locked by {'this process' if own else 'a worker'}")
    except NotFoundError:
        pass
    failed = await read_node(store, FailedRepair, id_path(FAILED_PATH, ledger_id))
    if failed is not None:
        found.append(
            f"tried {failed.value.tries} times, again in "
            f"{failed.value.again_ms / 1e3 - time.time():.0f} s: {failed.value.reason}"
        )
    return found
