"""How far repair is: what the auditor saw, what is marked, what fails, what was done."""

from __future__ import annotations

import time
from dataclasses import dataclass

from spark_ledger.errors import LedgerError, NoSuchLedgerError
from spark_ledger.limits.repair import FAILURES_SHOWN_MAX, MEASURED_LEDGERS_MAX
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.json_nodes import read_node
from spark_ledger.metadata.ledgers import LedgerStore, is_unreadable
from spark_ledger.metadata.repair_locks import LOCKS_PATH
from spark_ledger.metadata.unsettled import id_path, pages
from spark_ledger.repair.nodes import (
    CHECK_PATH,
    DONE_PATH,
    FAILED_PATH,
    PRIORITIES,
    STATE_PATH,
    AuditState,
    CheckState,
    FailedRepair,
    Mark,
    RepairDone,
    leaving,
    mark_root,
)
from spark_ledger.repair.plan import final_fragments, lost_indexes
from spark_ledger.types import BookieId, LedgerId, LedgerMetadata


@dataclass(frozen=True, slots=True)
class RepairStatus:
    """One look."""

    audit: AuditState
    done: RepairDone
    check: CheckState
    leaving: tuple[BookieId, ...]
    marked: dict[int, int]
    """Marked ledgers by copies that were left."""
    working: int
    """Ledgers that workers are at."""
    bytes_left: int
    """About what is still to be copied for marked ledgers whose length is known."""
    measured: int
    """Marked ledgers that ``bytes_left`` was counted for."""
    failing: int
    failed: list[tuple[LedgerId, FailedRepair]]
    """The first of those that failed at their last try, and why."""

    @property
    def rate(self) -> int:
        """Bytes per second that are copied now; 0 if the last count is old."""
        return self.done.bytes_per_s if time.time_ns() // 10**6 - self.done.time_ms < 30_000 else 0


async def look(store: MetadataStore) -> RepairStatus:
    """What the metadata say of repair."""
    audit = await read_node(store, AuditState, STATE_PATH)
    done = await read_node(store, RepairDone, DONE_PATH)
    check = await read_node(store, CheckState, CHECK_PATH)
    marked: dict[int, int] = {}
    size = measured = 0
    for copies in PRIORITIES:
        count = 0
        async for page in pages(store, mark_root(copies)):
            count += len(page.ids)
            for ledger_id in page.ids[: max(0, MEASURED_LEDGERS_MAX - measured)]:
                size += await _bytes_left(store, ledger_id, copies)
                measured += 1
        if count:
            marked[copies] = count
    failing = 0
    failed: list[tuple[LedgerId, FailedRepair]] = []
    async for page in pages(store, FAILED_PATH):
        failing += len(page.ids)
        for ledger_id in page.ids[: max(0, FAILURES_SHOWN_MAX - len(failed))]:
            node = await read_node(store, FailedRepair, id_path(FAILED_PATH, ledger_id))
            if node is not None:
                failed.append((ledger_id, node.value))
    return RepairStatus(
        audit=AuditState() if audit is None else audit.value,
        done=RepairDone() if done is None else done.value,
        check=CheckState() if check is None else check.value,
        leaving=tuple(sorted(await leaving(store))),
        marked=marked,
        working=len(await store.children(LOCKS_PATH)),
        bytes_left=size,
        measured=measured,
        failing=failing,
        failed=failed,
    )


async def _bytes_left(store: MetadataStore, ledger_id: LedgerId, copies: int) -> int:
    mark = await read_node(store, Mark, id_path(mark_root(copies), ledger_id))
    try:
        ledger = (await LedgerStore(store).read(ledger_id)).value
    except NoSuchLedgerError:
        return 0
    except LedgerError as error:
        if not is_unreadable(error):
            raise
        return 0  # it fails, and the reason stands there
    lost = frozenset() if mark is None else frozenset(map(BookieId, mark.value.bookies))
    return bytes_to_copy(ledger, lost)


def bytes_to_copy(ledger: LedgerMetadata, lost: frozenset[BookieId]) -> int:
    """About how many payload bytes the lost bookies held: entries of a ledger are of one size."""
    if ledger.last_entry_id < 0:
        return 0
    quorums = ledger.quorums
    entries = sum(
        max(0, fragment.last - fragment.first + 1) * len(lost_indexes(fragment.bookies, lost))
        for fragment in final_fragments(ledger)
    )
    share = quorums.write_quorum / quorums.ensemble_size
    return round(entries * share * ledger.length / (ledger.last_entry_id + 1))
