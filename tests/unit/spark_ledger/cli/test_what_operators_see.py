"""What the commands for operators print, word by word: each figure is under its own name.

What is expected stands in ``what_operators_see.txt`` beside this file, as a terminal shows it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_ledger.cli import autorecovery, collecting, inspection, leaving, rebalancing
from spark_ledger.cli import keeper as keeper_commands
from spark_ledger.cli.collecting import Wanted
from spark_ledger.cli.inspection import BookieRow
from spark_ledger.cli.restoring import Restored
from spark_ledger.cli.safety import Standing, Tally
from spark_ledger.cli.show.zones import Safety
from spark_ledger.cli.usage import BookieUsage, Held, StreamUsage, Usage
from spark_ledger.cli.verify import BookieCopies, Verified
from spark_ledger.keeper.nodes import (
    AuditState as KeeperAudit,
)
from spark_ledger.keeper.nodes import (
    Done,
    Elected,
    Found,
    KeeperState,
    PackedNode,
    Unlisted,
)
from spark_ledger.limits import GIB, KIB, MIB
from spark_ledger.limits.repair import REPAIR_BYTES_PER_S
from spark_ledger.metadata.collection import PassReport
from spark_ledger.repair.balance import Share
from spark_ledger.repair.decommission import Left, Named
from spark_ledger.repair.nodes import AuditState, CheckState, FailedRepair, RepairDone
from spark_ledger.repair.rebalance import RebalanceConfig, Rebalanced
from spark_ledger.repair.status import RepairStatus
from spark_ledger.transport.base import BookieDescription
from spark_ledger.types import BookieId, BookieInfo, BookieState, LedgerId
from tests.unit.spark_ledger.cli.conftest import Run

EXPECTED = Path(__file__).with_name("what_operators_see.txt")
URI = ("--metadata", "zk://localhost:2181/x")
NOW_S = 1_700_000_000
NOW_MS = NOW_S * 1000
B0, B1, B2 = map(BookieId, ("b0", "b1", "b2"))


@pytest.fixture(autouse=True)
def today(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ages are shown as of one moment."""
    monkeypatch.setattr("time.time", lambda: float(NOW_S))
    monkeypatch.setattr("time.time_ns", lambda: NOW_S * 10**9)


def check(name: str, run: Run, *command: str) -> None:
    """Compare what a command prints for people, with single spaces, and for scripts."""
    shown, scripted = run(*command, *URI), run(*command, "--json", *URI)
    assert shown.status == scripted.status, shown.err + scripted.err
    lines = [" ".join(line.split()) for line in (shown.out + shown.err).splitlines()]
    found = [
        f"## {name}",
        f"$ ledger {' '.join(command)}",
        *(each for each in lines if each),
        json.dumps(json.loads(scripted.out)),
        f"exit status {shown.status}",
    ]
    expected = EXPECTED.read_text().split("\n\n")
    (section,) = (each for each in expected if each.startswith(f"## {name}\n"))
    assert found == section.strip().splitlines()


def returning(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def soon(value: Any) -> Callable[..., Any]:
    async def found(*_: object) -> Any:
        return value

    return found


DONE = PassReport(
    time_ms=NOW_MS - 7_200_000,
    duration_s=1.5,
    held=40,
    candidates=6,
    kept=2,
    deleted=5,
    freed_bytes=3 * MIB,
    deleted_total=55,
    freed_bytes_total=99,
    passes_total=9,
    order="secret",
    reclaimable_bytes=7 * KIB,
)
DRY = PassReport(held=30, candidates=4, deleted=4, dry_run=True)
EARLY = PassReport(held=20, candidates=3, deleted=1, freed_bytes=9, aborted="the disk is full")


def test_list_of_bookies(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    full = "its disk is full"
    rows = [
        BookieRow(
            B0, BookieInfo(B0, "h0:1", rack="/r0", free_bytes=GIB, admin_address="h0:2"), DONE
        ),
        BookieRow(B1, BookieInfo(B1, "h1:1", BookieState.READ_ONLY, reason=full), None),
        BookieRow(B2, BookieInfo(B2, "h2:1", free_bytes=5), EARLY),
        BookieRow(BookieId("b3"), None, DONE),
    ]
    monkeypatch.setattr(inspection, "cluster_bookies", returning(rows))
    check("bookies", run, "bookies", "list")


REPAIRING = RepairStatus(
    audit=AuditState(
        time_ms=NOW_MS - 300_000, gone_s={"b1": 12.4, "b2": 77.0}, stopped="too many are gone"
    ),
    done=RepairDone(
        ledgers=1,
        copied_entries=22,
        copied_bytes=3 * MIB,
        bytes_per_s=5 * KIB,
        time_ms=NOW_MS - 9_000,
    ),
    check=CheckState(begun_ms=NOW_MS - 60_000, ended_ms=8, ledgers=44, with_holes=6),
    leaving=(B0,),
    marked={0: 1, 2: 4, 3: 8},
    working=2,
    bytes_left=7 * MIB,
    measured=11,
    failing=31,
    failed=[(LedgerId(7), FailedRepair(reason="b1 is silent", tries=3, again_ms=NOW_MS + 30_000))],
)
WHOLE = RepairStatus(
    AuditState(),
    RepairDone(),
    CheckState(),
    leaving=(),
    marked={},
    working=0,
    bytes_left=0,
    measured=0,
    failing=0,
    failed=[],
)
ENDED = RepairStatus(
    AuditState(time_ms=NOW_MS - 5_000),
    RepairDone(ledgers=2, copied_entries=1, bytes_per_s=99, time_ms=NOW_MS - 31_000),
    CheckState(ended_ms=NOW_MS - 86_400_000, ledgers=1, with_holes=0),
    (),
    {1: 1},
    1,
    5,
    1,
    0,
    [],
)


@pytest.mark.parametrize(
    ("name", "status"),
    [("repair at work", REPAIRING), ("repair of nothing", WHOLE), ("repair of one", ENDED)],
)
def test_repair(run: Run, monkeypatch: pytest.MonkeyPatch, name: str, status: RepairStatus) -> None:
    monkeypatch.setattr(autorecovery, "_look", soon(status))
    check(name, run, "autorecovery", "status")


def test_collection(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(B0, DONE), (B1, DRY), (B2, EARLY), (BookieId("b3"), None)]
    asked: list[Wanted] = []

    def collect(_uri: str, wanted: Wanted) -> Any:
        asked.append(wanted)
        return rows[: len(rows) if not wanted.dry_run else 2]

    monkeypatch.setattr(collecting, "collect", collect)
    check("collection", run, "bookies", "collect")
    assert asked[-1] == Wanted((), 600.0)
    options = ("--dry-run", "--share", "0.5", "--timeout", "7", "--bookie", "b0", "--bookie", "b1")
    check("dry collection", run, "bookies", "collect", *options)
    assert asked[-1] == Wanted(("b0", "b1"), 7.0, dry_run=True, share_max=0.5)
    run("bookies", "collect", "--accept-restored", "--bookie", "b0", *URI)
    assert asked[-1] == Wanted(("b0",), 600.0, accept_restored=True)
    run("bookies", "collect", "--give-back", "--bookie", "b0", *URI)
    assert asked[-1] == Wanted(("b0",), 600.0, give_back=True)
    count = len(asked)
    for flags in (("--accept-restored",), ("--give-back",)):
        assert run("bookies", "collect", *flags, *URI).status == 2, "no bookie is named"
    both = ("--give-back", "--accept-restored", "--bookie", "b0")
    assert run("bookies", "collect", *both, *URI).status == 2 and len(asked) == count


def test_rebalance(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {B0: Share(800, 1000), B1: Share(100, 2000)}
    after = {B0: Share(500, 1000), B1: Share(400, 2000)}
    failed = {LedgerId(9): "b1 took no copy"}
    asked: list[RebalanceConfig] = []

    def even_out(_uri: str, config: RebalanceConfig) -> Rebalanced:
        asked.append(config)
        return result

    monkeypatch.setattr(rebalancing, "even_out", even_out)
    result = Rebalanced(before, after, mean=0.3, moves=4, moved_bytes=300, is_even=True)
    check("rebalance", run, "bookies", "rebalance")
    assert asked[-1] == RebalanceConfig()
    options = ("--rate", "1m", "--source-rate", "2m", "--max-moves", "3", "--tolerance", "0.2")
    check("dry rebalance", run, "bookies", "rebalance", "--dry-run", *options)
    assert asked[-1] == RebalanceConfig(0.2, 3, MIB, 2 * MIB, dry_run=True)
    result = Rebalanced(before, after, mean=0.3, moves=4, moved_bytes=300, failed=failed)
    check("rebalance that is not done", run, "bookies", "rebalance")
    result = Rebalanced(after, after, mean=0.3, is_even=True)
    check("rebalance of nothing", run, "bookies", "rebalance")


def test_leaving(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, float]]] = []
    runs = False

    def take_out(_uri: str, bookie_id: str, *, told: Callable[[Named], None], **how: float) -> Left:
        asked.append((bookie_id, how))
        told(Named(5, 0))
        return Left(runs)

    def empty(_uri: str, bookie_id: str, *, told: Callable[[Named], None], **how: float) -> None:
        asked.append((bookie_id, how))
        told(Named(4, 3 * MIB))
        told(Named(0, 0, asked=3))  # behind a restored ZooKeeper
        told(Named(0, 0, kept=2))
        told(Named(0, 0, kept=1, is_silent=True))

    monkeypatch.setattr(leaving, "take_out", take_out)
    monkeypatch.setattr(leaving, "empty", empty)
    for runs in (True, False):
        name = "decommission of one that " + ("runs" if runs else "is gone")
        options = ("--open-ledger-grace", "5s", "--repair-rate", "3m")
        check(name, run, "bookies", "decommission", "b1", *options)
    check("drain", run, "bookies", "drain", "b2")
    assert asked[::2] == [
        ("b1", {"open_grace_s": 5.0, "bytes_per_s": 3 * MIB}),
        ("b1", {"open_grace_s": 5.0, "bytes_per_s": 3 * MIB}),
        ("b2", {"open_grace_s": 60.0, "bytes_per_s": REPAIR_BYTES_PER_S}),
    ]
    for stays in (True, False):
        monkeypatch.setattr(leaving, "let_stay", returning(stays))
        found = "" if stays else " of one that was not to leave"
        check(f"cancel{found}", run, "bookies", "decommission", "b1", "--cancel")
        check(f"undo{found}", run, "bookies", "drain", "b1", "--undo")


def test_keeper(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    state = KeeperState(
        host="h",
        pid=1,
        passes=12,
        time_ms=NOW_MS - 20_000,
        done=Done(recovered=21, deleted=22, reclaimed=23, streams_finished=24),
        found=Found(
            open=31, open_of_the_dead=32, unnamed=33, unnamed_of_the_dead=34, locked=35, failing=36
        ),
        gone_s={"o": 5.0},
        last_error="a node is damaged",
    )
    audit = KeeperAudit(
        is_asked=True,
        ended_ms=NOW_MS - 3_600_000,
        last=Unlisted(ledgers=41, user_bytes=2 * KIB, deleted=42),
        deleted=43,
        unread=("s", "t"),
    )
    packed = PackedNode(packs=51, commits=52, copied_bytes=53)
    new = KeeperState(host="h", pid=1)
    for name, found in (
        ("keeper at work", (Elected(host="k", pid=77), state, audit, packed)),
        ("keeper before its first pass", (None, new, None, PackedNode())),
        ("no keeper yet", (None, None, None, PackedNode())),
    ):
        monkeypatch.setattr(keeper_commands, "_status", soon(found))
        check(name, run, "keeper", "status")


def test_cluster_status(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    standing = Standing(
        zones={zone: Tally(n, 10 * n, n * KIB) for n, zone in enumerate(Safety, 1)},
        under_way=3,
        ledgers=61,
        open=62,
        misplaced=Tally(63, 64, 65),
        bookies={B0: "writable", B1: "writable", B2: "down"},
        silent={B1: "timeout"},
        unbelieved={B0: "it says what cannot be"},
        worst=[(LedgerId(9), Safety.UNREADABLE)],
        unknown=66,
        unknown_why="a node is damaged",
    )
    monkeypatch.setattr(inspection, "survey_cluster", returning(standing))
    check("cluster at risk", run, "cluster", "status")
    monkeypatch.setattr(inspection, "survey_cluster", returning(Standing()))
    check("cluster that is well", run, "cluster", "status")


def test_verify(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Verified(
        {
            B0: BookieCopies("", 1, 2, 3 * KIB, 4, 5, 6, 7),
            B1: BookieCopies("it is away", user_bytes=8),
        },
        closed=11,
        open=12,
        locked=13,
        changed=14,
        unknown=16,
        named_bytes=15,
        faults=["ledger 9 lacks 3"],
    )
    monkeypatch.setattr(inspection, "verify_cluster", returning(found))
    check("verified with faults", run, "cluster", "usage", "--verify")
    whole = Verified({B0: BookieCopies(beyond=5)})
    monkeypatch.setattr(inspection, "verify_cluster", returning(whole))
    check("verified", run, "cluster", "usage", "--verify")


def test_usage(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = Usage(
        streams={
            "1": StreamUsage("small", True, 71, False, 5, Held(1, 2, 3, 4)),
            "2": StreamUsage("large", True, 72, True, None, Held(5, 6, 7 * KIB, 8 * MIB)),
            "3": StreamUsage("gone", False, 0, False, 0, Held(9, 0, 1, 1)),
        },
        raw=Held(11, 12, 13, 14),
        bookies={
            B1: BookieUsage("writable", 3, 4, 5, 9 * GIB),
            B0: BookieUsage("read-only", 1, None, None, 7),
            B2: BookieUsage("down"),
        },
        unnamed=81,
        unknown=84,
        unknown_why="a node is damaged",
        metadata_nodes=82,
        metadata_bytes=83 * KIB,
        rate_bytes_s=1024.0,
        rate_window_s=7200.0,
    )
    monkeypatch.setattr(inspection, "measure_usage", returning(usage))
    check("usage", run, "cluster", "usage")


def test_restored(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    done = Restored(5, 1_005, 7, {B0: 3, B1: 4}, [B2], [B1, B2], [B0])
    asked: list[tuple[str, ...]] = []

    def after(_uri: str, without: tuple[str, ...]) -> Restored:
        asked.append(without)
        return done

    monkeypatch.setattr(inspection, "after_a_restore", after)
    check("restored", run, "cluster", "restored", "--yes", "--without-bookie", "b2")
    assert asked == [("b2",)] * 2
    assert run("cluster", "restored", *URI).status == 130, "nobody has said yes"
    assert len(asked) == 2


def test_bookie(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    info = BookieInfo(B0, "h:1", rack="/r", admin_address="h:2")
    words = BookieDescription(
        B0, "c", "1.2", "writable", 1, 2 * KIB, 3 * MIB, 4 * GIB, 3_661.5, 9, NOW_S - 7_200.0, 5, 6
    )
    monkeypatch.setattr(inspection, "describe_bookie", returning((info, words)))
    check("bookie", run, "bookie", "status", "b0")
