"""Figures of keeper and repair: from the nodes that these write to the names that a bookie exports,
each under its own, also when all of them differ."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TypeVar, cast

import msgspec

from bookie_server.keeper_process import KeeperProcess, Watched
from bookie_server.service.metrics import ServiceMetrics
from spark_ledger.keeper import nodes as keeper
from spark_ledger.metadata.json_nodes import Node, encode_node
from spark_ledger.metadata.memory import MemoryTree
from spark_ledger.repair import nodes as repair
from tests.unit.bookie_server.service.test_exposition import shown, storage_stats

_NUMBERS = count(100)

S = TypeVar("S", bound=msgspec.Struct)


def numbered(kind: type[S], **given: object) -> S:
    """A struct whose numbers are all others."""
    made = {
        field.name: next(_NUMBERS)
        for field in msgspec.structs.fields(kind)
        if "int" in str(field.type) and "dict" not in str(field.type)
    }
    made.pop("format_version", None)
    return kind(**(made | given))


class Process:
    """Stands for the keeper beside the bookie."""

    def is_here(self, elected: keeper.Elected | None) -> bool:
        return elected is not None and elected.host == "here"

    async def stop(self) -> None: ...


def exported(nodes: dict[str, msgspec.Struct]) -> dict[str, float]:
    """What a bookie exports of keeper and repair."""

    async def main() -> dict[str, float]:
        tree = MemoryTree()
        store = tree.open_session()
        for path, node in nodes.items():
            await store.create(path, encode_node(cast("Node", node)))
        watched = Watched(tree.open_session(), cast("KeeperProcess", Process()))
        async with asyncio.timeout(30):
            while watched.repair is None:
                await asyncio.sleep(0.001)
        metrics = ServiceMetrics()
        metrics.keeper, metrics.repair = lambda: watched.figures, lambda: watched.repair
        await watched.stop()
        found = shown(metrics, storage_stats())
        return {
            name: value for name, value in found.items() if "_keeper_" in name or "_rep" in name
        }

    return asyncio.run(main())


def test_each_figure_of_keeper_and_repair_comes_from_its_own_node() -> None:
    found, done = numbered(keeper.Found), numbered(keeper.Done)
    state = numbered(keeper.KeeperState, host="h", found=found, done=done)
    last = numbered(keeper.Unlisted)
    audit = numbered(
        keeper.AuditState,
        is_asked=False,
        begun_s=None,
        ended_s=0.0,
        last=last,
        so_far=numbered(keeper.Unlisted),
    )
    audit = msgspec.structs.replace(audit, unread=())
    swept, packed = numbered(keeper.SweptNode), numbered(keeper.PackedNode)
    looked = numbered(repair.AuditState, gone_s={"a": 1.0, "b": 2.0}, stopped="too many")
    counts, check = numbered(repair.RepairCounts), numbered(repair.CheckState)
    copied = numbered(repair.RepairDone)
    nodes: dict[str, msgspec.Struct] = {
        keeper.ELECTED_PATH: keeper.Elected(host="here", pid=1),
        keeper.STATE_PATH: state,
        keeper.SWEPT_PATH: swept,
        keeper.AUDIT_PATH: audit,
        keeper.PACKED_PATH: packed,
        repair.STATE_PATH: looked,
        repair.COUNTS_PATH: counts,
        repair.CHECK_PATH: check,
        repair.DONE_PATH: copied,
    }
    wanted = {
        "bookie_keeper_elected": 1,
        "bookie_keeper_here": 1,
        "bookie_keeper_passed_at_seconds": state.time_ms / 1000,
        "bookie_keeper_open_ledgers": found.open,
        "bookie_keeper_open_ledgers_of_the_dead": found.open_of_the_dead,
        "bookie_keeper_unnamed_ledgers": found.unnamed,
        "bookie_keeper_unnamed_ledgers_of_the_dead": found.unnamed_of_the_dead,
        "bookie_keeper_locked_ledgers": found.locked,
        "bookie_keeper_failing_ledgers": found.failing,
        "bookie_keeper_reclaimable_commits": swept.reclaimable_commits,
        "bookie_keeper_reclaimable_bytes": swept.reclaimable_bytes,
        "bookie_keeper_unlisted_ledgers": last.ledgers,
        "bookie_keeper_audited_at_seconds": audit.ended_ms / 1000,
        "bookie_keeper_recovered_ledgers_total": done.recovered,
        "bookie_keeper_deleted_ledgers_total": done.deleted,
        "bookie_keeper_reclaimed_ledgers_total": done.reclaimed,
        "bookie_keeper_finished_streams_total": done.streams_finished,
        "bookie_keeper_audit_deleted_ledgers_total": audit.deleted,
        "bookie_keeper_packs_total": packed.packs,
        "bookie_keeper_packed_commits_total": packed.commits,
        "bookie_keeper_packed_bytes_total": packed.copied_bytes,
        "bookie_repair_looked_at_seconds": looked.time_ms / 1000,
        "bookie_repair_gone_bookies": 2,
        "bookie_repair_lost_bookies": counts.lost,
        "bookie_repair_stopped": 1,
        "bookie_repair_marked_ledgers": counts.marked,
        "bookie_repair_marked_ledgers_at_one": counts.marked_at_one,
        "bookie_repair_failing_ledgers": counts.failing,
        "bookie_repair_misplaced_ledgers": counts.misplaced,
        "bookie_repair_checked_at_seconds": check.ended_ms / 1000,
        "bookie_repair_ledgers_with_holes": check.with_holes,
        "bookie_repair_repaired_ledgers_total": copied.ledgers,
        "bookie_repair_copied_entries_total": copied.copied_entries,
        "bookie_repair_copied_bytes_total": copied.copied_bytes,
        "bookie_repair_source_waited_seconds_total": copied.source_waited_ms / 1000,
    }
    assert exported(nodes) == wanted


def test_cluster_without_keeper_and_repair_has_figures_of_nothing() -> None:
    found = exported({})
    assert len(found) == 35 and not any(found.values())
