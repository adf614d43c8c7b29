"""Which script shows which scenario: read from the scripts' first lines and the catalogue."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tests.scenarios.script import FOLDER, files

CATALOGUE = FOLDER / "catalogue.list"
HERE, NOT_HERE = "Acted out here", "Not here"
_HEADLINE = re.compile(r"# ((?:[A-Z]+\d+, )*[A-Z]+\d+): (.+[.])")
_ENTRY = re.compile(r"([A-Z]+)(\d+) +(\S.*)")


class Headline(NamedTuple):
    """The first line of a script: the scenarios that it acts out, and what it shows."""

    ids: tuple[str, ...]
    shows: str


class Row(NamedTuple):
    """One line of the index."""

    scenario_id: str
    script: str
    shows: str


def headline(path: Path) -> Headline:
    """The first line of a script; AssertionError when it is not ``# ID, ID: what it shows.``"""
    first = path.read_text(encoding="utf-8").split("\n", 1)[0]
    found = _HEADLINE.fullmatch(first)
    assert found, f"{path.name} begins with {first!r}, not with '# E2: what it shows.'"
    return Headline(tuple(found[1].split(", ")), found[2])


def catalogue(heading: str = HERE) -> dict[str, str]:
    """The ids of one part of the catalogue, with what happens, or why it does not apply."""
    lines = CATALOGUE.read_text(encoding="utf-8").splitlines()
    found: dict[str, str] = {}
    for line in lines[lines.index(heading) + 1 :]:
        if not line:
            break
        entry = _ENTRY.fullmatch(line)
        assert entry, f"{CATALOGUE.name}: {line!r} is not an id and what happens"
        found[entry[1] + entry[2]] = entry[3]
    return found


def index() -> list[Row]:
    """A row for each scenario and script, in the order of the ids."""
    rows = [
        Row(scenario_id, path.stem, headline(path).shows)
        for path in files()
        for scenario_id in headline(path).ids
    ]
    return sorted(rows, key=lambda row: (_order(row.scenario_id), row.script))


def table() -> str:
    """The index as text; a star marks what the catalogue does not have."""
    known = catalogue()
    rows = [
        (row.scenario_id + ("" if row.scenario_id in known else " *"), row.script, row.shows)
        for row in index()
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    lines = [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in rows]
    counted = f"{len(files())} scripts for {len(known)} scenarios of the catalogue; * is our own"
    return "\n".join([*lines, counted])


def _order(scenario_id: str) -> tuple[str, int]:
    letters = scenario_id.rstrip("0123456789")
    return letters, int(scenario_id[len(letters) :])
