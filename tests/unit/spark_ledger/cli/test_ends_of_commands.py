"""Exit statuses that scripts act on, each cause alone, and what reaches those that do the work."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from spark_ledger.cli import app, autorecovery, collecting, inspection, rebalancing
from spark_ledger.cli import keeper as keeper_commands
from spark_ledger.cli.inspection import BookieRow
from spark_ledger.cli.safety import Standing
from spark_ledger.cli.usage import Usage
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import ConflictError, MetadataRestoredError
from spark_ledger.keeper import keeper as keeper_module
from spark_ledger.keeper import nodes
from spark_ledger.keeper.config import KeeperConfig
from spark_ledger.limits.keeper import OPTIMIZE_S
from spark_ledger.limits.metadata import METADATA_ATTEMPTS
from spark_ledger.metadata.collection import PassReport
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.repair import service
from spark_ledger.repair.auditor import AuditorConfig
from spark_ledger.repair.balance import Share
from spark_ledger.repair.nodes import AuditState, CheckState, RepairDone
from spark_ledger.repair.rebalance import Rebalanced
from spark_ledger.repair.service import RepairConfig
from spark_ledger.repair.status import RepairStatus
from spark_ledger.repair.worker import WorkerConfig
from spark_ledger.types import BookieId, BookieInfo, BookieState
from tests.unit.spark_ledger.cli.conftest import Run
from tests.unit.spark_ledger.cli.test_what_operators_see import URI, returning, soon

B0, B1 = BookieId("b0"), BookieId("b1")
NO_BOOKIES = SimpleNamespace(context=SimpleNamespace(store=MemoryMetadataStore()))
"""A client of a cluster in which no bookie is registered: it has nobody to reach."""


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    ("report", "outcome", "status"),
    [
        (PassReport(), "done", 0),
        (PassReport(dry_run=True), "dry run", 0),
        (PassReport(aborted="the disk is full"), "ended early", 1),
        (PassReport(dry_run=True, aborted="the disk is full"), "ended early", 1),
        (None, "not finished", 1),
    ],
)
def test_collection_ends_well_only_if_that_of_each_bookie_does(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    report: PassReport | None,
    outcome: str,
    status: int,
    as_json: bool,
) -> None:
    for rows in ([(B0, PassReport()), (B1, report)], [(B0, report), (B1, PassReport())]):
        monkeypatch.setattr(collecting, "collect", returning(rows))
        ended = run("bookies", "collect", *["--json"] * as_json, *URI)
        assert ended.status == status
        assert as_json or outcome in ended.out


def test_rebalance_that_is_not_done_fails_though_nothing_failed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = {B0: Share(800, 1000)}
    monkeypatch.setattr(rebalancing, "even_out", returning(Rebalanced(shares, shares, mean=0.3)))
    ended = run("bookies", "rebalance", *URI)
    assert ended.status == 1 and "not even yet" in ended.out


def test_why_a_bookie_is_read_only_is_shown_before_why_it_collects_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = BookieInfo(B0, "h:1", BookieState.READ_ONLY, reason="its disk is full")
    row = BookieRow(B0, info, PassReport(aborted="a log is damaged"))
    monkeypatch.setattr(inspection, "cluster_bookies", returning([row]))
    shown = run("bookies", "list", *URI).out
    assert "its disk is full" in shown and "a log is damaged" not in shown


def test_each_bookie_that_is_silent_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    standing = Standing(silent={B0: "timeout", B1: "unavailable"})
    monkeypatch.setattr(inspection, "survey_cluster", returning(standing))
    shown = run("cluster", "status", *URI).out
    assert "b0 does not answer (timeout)" in shown
    assert "b1 does not answer (unavailable)" in shown


@pytest.mark.parametrize(("left", "shown"), [(0.0, "0.0 days"), (None, "no growth")])
def test_disks_that_are_full_are_not_those_that_do_not_grow(
    run: Run, monkeypatch: pytest.MonkeyPatch, left: float | None, shown: str
) -> None:
    class Left(Usage):
        days_left = left

    monkeypatch.setattr(inspection, "measure_usage", returning(Left(rate_bytes_s=1.0)))
    assert f"{shown} at that rate" in run("cluster", "usage", *URI).out


@pytest.mark.parametrize("failures", [0, 1, METADATA_ATTEMPTS])
def test_audit_is_asked_for_beside_a_keeper_that_writes_how_far_it_is(
    run: Run, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    asked = []

    async def ask(store: object) -> None:
        asked.append(store)
        if len(asked) <= failures:
            raise ConflictError("the node has changed")

    @asynccontextmanager
    async def store(_uri: str) -> AsyncIterator[object]:
        yield "store"

    monkeypatch.setattr(nodes, "ask_for_audit", ask)
    monkeypatch.setattr("spark_ledger.metadata.connect.connected_store", store)
    ended = run("keeper", "audit", *URI)
    assert len(asked) == min(failures + 1, METADATA_ATTEMPTS)
    assert ended.status == (failures == METADATA_ATTEMPTS)
    assert ("begins an audit" in ended.out) == (ended.status == 0)


class _Client:
    """Stands in for a connection."""

    async def __aenter__(self) -> _Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


def test_audit_that_only_looks_is_given_the_grace(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[KeeperConfig] = []

    class Looks:
        def __init__(self, _client: object, config: KeeperConfig) -> None:
            given.append(config)

        async def audit(self) -> AsyncIterator[list[object]]:
            yield []

    monkeypatch.setattr(LedgerClient, "connect", soon(_Client()))
    monkeypatch.setattr(keeper_module, "Keeper", Looks)
    assert run("keeper", "audit", "--dry-run", "--unnamed-grace", "7", *URI).status == 0
    assert given == [KeeperConfig(dry_run=True, unnamed_grace_s=7.0)]


def test_output_that_cannot_be_written_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(app.root, "main", full)
    monkeypatch.setattr(app, "give_up_output", returning(None))
    with pytest.raises(SystemExit) as ended:
        app.main([])
    assert ended.value.code == 1


@pytest.mark.parametrize(
    ("marked", "stopped", "status"),
    [({}, "", 0), ({1: 2}, "", 1), ({}, "too many bookies are gone", 1)],
)
def test_repair_is_not_well_while_copies_lack_or_it_has_stopped(
    run: Run, monkeypatch: pytest.MonkeyPatch, marked: dict[int, int], stopped: str, status: int
) -> None:
    found = RepairStatus(
        audit=AuditState(stopped=stopped),
        done=RepairDone(),
        check=CheckState(),
        leaving=(),
        marked=marked,
        working=0,
        bytes_left=0,
        measured=0,
        failing=0,
        failed=[],
    )
    monkeypatch.setattr(autorecovery, "_look", soon(found))
    assert run("autorecovery", "status", *URI).status == status


REPAIR = ("--lost-bookie-delay", "9s", "--open-ledger-grace", "10s")
RATES = ("--repair-rate", "11k", "--repair-source-rate", "12k")
WANTED = RepairConfig(
    AuditorConfig(lost_bookie_delay_s=9.0),
    WorkerConfig(bytes_per_s=11 * 1024, source_bytes_per_s=12 * 1024, open_grace_s=10.0),
)


def test_keeper_runs_as_its_options_say(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[tuple[KeeperConfig, RepairConfig | None, dict[str, bool]]] = []

    async def serve(
        _uri: str, config: KeeperConfig, repair: RepairConfig | None, **how: bool
    ) -> None:
        served.append((config, repair, how))

    monkeypatch.setattr(logging, "basicConfig", returning(None))
    monkeypatch.setattr(keeper_commands, "_serve", serve)
    names = ("owner-grace", "unnamed-grace", "dropped-grace", "interval")
    given = [word for n, name in enumerate(names, 1) for word in (f"--{name}", str(n))]
    given += ["--sink-records", "5d", "--audit-interval", "6", "--optimize-interval", "7"]
    given += ["--replaced-grace", "9"]
    run("keeper", "run", *given, "--optimize-rate", "8k", *REPAIR, *RATES, *URI)
    run("keeper", "run", "--no-autorecovery", "--unless-elected", "--until-input-ends", *URI)
    config = KeeperConfig(
        owner_grace_s=1.0,
        unnamed_grace_s=2.0,
        dropped_grace_s=3.0,
        replaced_grace_s=9.0,
        pass_s=4.0,
        sink_records_s=5 * 86_400.0,
        audit_s=6.0,
        optimize_s=7.0,
        optimize_bytes_per_s=8 * 1024,
    )
    assert served == [
        (config, WANTED, {"unless_elected": False, "until_input_ends": False}),
        (
            KeeperConfig(optimize_s=OPTIMIZE_S),
            None,
            {"unless_elected": True, "until_input_ends": True},
        ),
    ]


def test_repair_runs_as_its_options_say(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[RepairConfig] = []

    async def serve(_uri: str, config: RepairConfig) -> None:
        served.append(config)

    monkeypatch.setattr(logging, "basicConfig", returning(None))
    monkeypatch.setattr(autorecovery, "_serve", serve)
    run("autorecovery", "run", *REPAIR, *RATES, *URI)
    assert served == [WANTED]


@pytest.mark.parametrize("is_elected", [True, False])
def test_keeper_that_is_not_elected_marks_nothing_for_repair(
    monkeypatch: pytest.MonkeyPatch, is_elected: bool
) -> None:
    marks: list[bool] = []

    async def run_repair(_client: Any, _config: Any, _stop: Any, may_mark: Any) -> None:
        marks.append(may_mark())

    async def main() -> None:
        keeper = SimpleNamespace(run=lambda _stop: asyncio.sleep(0.01), is_elected=is_elected)
        given: Any = (NO_BOOKIES, keeper, WANTED, asyncio.Event())
        await keeper_commands._work(*given)

    monkeypatch.setattr(service, "run_repair", run_repair)
    asyncio.run(main())
    assert marks == [is_elected]


def test_keeper_whose_repair_fails_ends_with_that_and_leaves_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bug of ours: the bookie beside it starts another keeper."""
    ended: list[str] = []

    async def keep(stop: asyncio.Event) -> None:
        try:
            await stop.wait()
        finally:
            ended.append("keeper")

    async def run_repair(*_: Any) -> None:
        await asyncio.sleep(0.01)
        raise ValueError("a bug")

    async def main() -> None:
        keeper = SimpleNamespace(run=keep, is_elected=True)
        given: Any = (NO_BOOKIES, keeper, WANTED, asyncio.Event())
        with pytest.raises(ValueError, match="a bug"):
            async with asyncio.timeout(10.0):
                await keeper_commands._work(*given)

    monkeypatch.setattr(service, "run_repair", run_repair)
    asyncio.run(main())
    assert ended == ["keeper"]


@pytest.mark.parametrize("keeper_fails", [True, False])
def test_keeper_runs_on_behind_repair_that_has_ended(
    monkeypatch: pytest.MonkeyPatch, keeper_fails: bool
) -> None:
    ran: list[str] = []

    async def keep(_stop: asyncio.Event) -> None:
        await asyncio.sleep(0.05)
        ran.append("keeper")
        if keeper_fails:
            raise MetadataRestoredError("ZooKeeper went back")

    async def run_repair(*_: Any) -> None:
        ran.append("repair")

    async def main() -> None:
        keeper = SimpleNamespace(run=keep, is_elected=True)
        given: Any = (NO_BOOKIES, keeper, WANTED, asyncio.Event())
        with pytest.raises(MetadataRestoredError) if keeper_fails else nullcontext():
            await keeper_commands._work(*given)

    monkeypatch.setattr(service, "run_repair", run_repair)
    asyncio.run(main())
    assert ran == ["repair", "keeper"]
