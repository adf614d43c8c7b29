"""Every scenario file, as a test: what the machines do now is what the file says."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from tests.scenarios.index import HERE, NOT_HERE, catalogue, headline, index, table
from tests.scenarios.script import files, run


@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    written = path.read_text(encoding="utf-8")
    now = run(written)
    difference = "\n".join(
        difflib.unified_diff(
            written.splitlines(),
            now.splitlines(),
            f"{path.name} as written",
            "as it is now",
            "",
            "",
            lineterm="",
        )
    )
    assert now == written, f"\n{difference}\npython -m tests.scenarios --rewrite {path.stem}"


def test_every_scenario_expects_something() -> None:
    """Output can be rewritten without a thought; an ``expect`` cannot."""
    bare = [path.name for path in files() if "\n> expect " not in path.read_text(encoding="utf-8")]
    assert not bare
    assert files()


def test_every_scenario_of_the_catalogue_has_a_script() -> None:
    shown = {row.scenario_id for row in index()}
    missing = [f"{name}: {text}" for name, text in catalogue(HERE).items() if name not in shown]
    assert not missing
    assert not shown & catalogue(NOT_HERE).keys()
    assert len(catalogue(HERE)) >= 58


def test_every_script_says_what_it_shows_and_is_in_the_index() -> None:
    printed = table()
    for path in files():
        assert path.stem in printed
        first_id = headline(path).ids[0].lower()
        number = first_id.lstrip("abcdefghijklmnopqrstuvwxyz")
        named = first_id.removesuffix(number) + number.zfill(2)
        assert path.stem.startswith(named + "_"), f"{path.name} shows {first_id}"
