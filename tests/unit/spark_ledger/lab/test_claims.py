"""What is said about replication holds in the lab, and its page says what was measured."""

from __future__ import annotations

import json

import pytest

from spark_ledger.cli.app import main
from spark_ledger.lab import claims
from spark_ledger.lab.claims import CLAIMS
from spark_ledger.lab.claims_page import REAL, Real, page
from spark_ledger.lab.experiments import Claim, Figure, outcome
from spark_ledger.lab.kafka import SESSION_S
from spark_ledger.lab.scenarios import EVERY_S
from tests.effort import LAB_CLAIMS, in_shares
from tests.style.sources import ROOT

# What loses something first: these are the claims that `make test` runs.
_ORDER = sorted(range(len(CLAIMS)), key=lambda at: -sum(f.name == "lost" for f in CLAIMS[at][2]))


@pytest.mark.parametrize("number", in_shares(_ORDER, LAB_CLAIMS))
def test_claim_holds_in_each_of_its_runs(number: int) -> None:
    for figure in CLAIMS[number].figures:
        assert figure.holds(), f"{figure}: {figure.measure()}"


@pytest.mark.parametrize("real", REAL, ids=[real.protocol + str(i) for i, real in enumerate(REAL)])
def test_model_of_a_killed_server_has_the_shape_of_the_real_one(real: Real) -> None:
    """Whoever waits for a timeout is silent for it and little more; the others go on."""
    gap_s = outcome("leader-dies", real.protocol).longest_gap_ms / 1e3
    if real.timeout_s is None:
        assert gap_s < 2 * EVERY_S and real.gap_ms < 200
    else:
        assert 0.9 < gap_s / SESSION_S < 1.5
        assert 0.9 < real.gap_ms / 1e3 / real.timeout_s < 1.5


def test_page_of_claims_is_up_to_date() -> None:
    written = (ROOT / "docs/replication.md").read_text(encoding="utf-8")
    assert page() == written, "run: ledger lab claims --write docs/replication.md"


def test_claim_that_a_run_refutes_is_shown_and_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = Figure("power-cut", "kafka", "lost", "=", 0)
    monkeypatch.setattr(claims, "CLAIMS", (Claim("Kafka loses nothing.", "nobody", (figure,)),))
    for arguments in ([], ["--json"]):
        with pytest.raises(SystemExit) as ended:
            main(["lab", "claims", *arguments])
        assert ended.value.code == 1
    table, _, document = capsys.readouterr().out.partition("{")
    assert "NO" in table
    assert json.loads("{" + document)["holds"] is False
