"""The committed generated code is what the pinned generator makes of ``bookie.proto`` today."""

from __future__ import annotations

from pathlib import Path

from tests.style.generated import OUTPUTS, generate
from tests.style.sources import ROOT


def test_generated_code_is_current(tmp_path: Path) -> None:
    generate(tmp_path)
    stale = [
        path for path in OUTPUTS if (tmp_path / path).read_bytes() != (ROOT / path).read_bytes()
    ]
    assert not stale, f"run make proto and commit: {stale}"
