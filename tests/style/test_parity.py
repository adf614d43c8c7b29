"""The parity table keeps its word: its tests and options exist, and no option is left out."""

from __future__ import annotations

import re

from connector.foreign_options import INSTEAD
from connector.option_table import OPTIONS
from tests.style.parity import PAGE, SECTIONS, page
from tests.style.sources import ROOT

ROWS = [row for section in SECTIONS for row in section.rows]


def test_page_is_made_from_the_rows() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.style.parity"


def test_every_named_test_exists() -> None:
    for row in ROWS:
        file, _, name = row.test.partition("::")
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert re.search(rf"^def {name}\(", text, re.MULTILINE), f"{row.theirs}: {row.test}"


def test_every_named_option_exists() -> None:
    ours = {option.name for option in OPTIONS}
    assert not {row.ours for row in ROWS if row.ours} - ours


def test_every_option_that_has_a_message_has_a_row() -> None:
    named = {name for row in ROWS for name in row.theirs.split(", ")}
    assert not set(INSTEAD) - named
