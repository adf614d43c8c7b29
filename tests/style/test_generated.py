"""Committed generated code and pages are what their generators make of their sources today."""

from __future__ import annotations

from pathlib import Path

from spark_ledger.lab.claims import CLAIMS
from tests.style.generated import OUTPUTS, generate
from tests.style.sources import ROOT


def test_generated_code_is_current(tmp_path: Path) -> None:
    generate(tmp_path)
    stale = [
        path for path in OUTPUTS if (tmp_path / path).read_bytes() != (ROOT / path).read_bytes()
    ]
    assert not stale, f"run make proto and commit: {stale}"


def test_page_of_claims_has_each_claim_figure_and_source() -> None:
    """What was measured is compared by ``test_claims``, which has to run them all."""
    text = " ".join((ROOT / "docs/replication.md").read_text(encoding="utf-8").split())
    rest = text
    for number, claim in enumerate(CLAIMS, 1):
        wanted = [f"## {number}. {claim.statement}", f"Said in: {claim.source}."]
        wanted[1:1] = [
            f"| `{each.scenario}` | `{each.protocol}` | {each.expected} |" for each in claim.figures
        ]
        for line in wanted:
            _, found, rest = rest.partition(line)
            assert found, f"run ledger lab claims --write docs/replication.md: {line}"
    assert "| NO |" not in text, "a run refutes a claim"
