"""``ledger autorecovery status``: what is said of ledgers that fail."""

from __future__ import annotations

import json
import time

import pytest

from spark_ledger.cli import autorecovery
from spark_ledger.repair.nodes import AuditState, CheckState, FailedRepair, RepairDone
from spark_ledger.repair.status import RepairStatus
from spark_ledger.types import LedgerId
from tests.unit.spark_ledger.cli.conftest import Run


def test_ledgers_that_fail_have_their_reason_and_next_try(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    again_ms = round(1e3 * (time.time() + 7200))
    failed = [
        (LedgerId(7), FailedRepair(reason="b1 is silent", tries=3, again_ms=again_ms)),
        (LedgerId(8), FailedRepair(reason="of an older program", tries=1)),
    ]

    async def look(_uri: str) -> RepairStatus:
        done, check = RepairDone(), CheckState()
        return RepairStatus(AuditState(), done, check, (), {2: 2}, 0, 0, 2, 2, failed)

    monkeypatch.setattr(autorecovery, "_look", look)
    uri = ("--metadata", "zk://localhost:2181/x")
    said = run("autorecovery", "status", *uri).out
    (first,) = (line.split() for line in said.splitlines() if "b1 is silent" in line)
    assert first[:3] == ["7", "3", "in"] and 0 < int(first[3]) <= 7200
    assert "now" in next(line for line in said.splitlines() if "of an older program" in line)
    found = json.loads(run("autorecovery", "status", "--json", *uri).out)
    assert [each["again_ms"] for each in found["failed"]] == [again_ms, None]
