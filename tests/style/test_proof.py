"""PROOF.md is what its tool makes of the committed figures."""

from __future__ import annotations

from tests.proof.page import PAGE, page


def test_the_page_is_made_from_the_figures() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.proof --page"
