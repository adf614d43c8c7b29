"""The mutants: bugs that BookKeeper or a peer once had, as changes to our own sources.

The ``.toml`` files beside this one hold them; README.md says how to add one. A text that does not
occur exactly once is an error: the source has changed, and the mutant has to follow.
"""

from __future__ import annotations

import ast
import functools
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = Path(__file__).resolve().parent

SuiteName = Literal["scenarios", "random", "exhaustive", "sim", "crash", "failures", "unit"]


class StaleError(Exception):
    """A mutant that no longer fits the sources."""


class Edit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One text in one file, and its replacement."""

    file: str
    old: str
    new: str


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One bug."""

    name: str
    resembles: str
    """Who had the bug, and what it does."""
    killers: tuple[SuiteName, ...]
    """The suites that are expected to find it, in the order in which they are tried."""
    file: str = ""
    old: str = ""
    new: str = ""
    edits: tuple[Edit, ...] = ()
    unit: tuple[str, ...] = ()
    """Test files for the suite "unit", if not those named after the mutated file."""
    only: str = ""
    """An option that the seeds of the suite "sim" have to draw, if the bug shows nowhere else."""
    equivalent: str = ""
    """Why the change is harmless, because of other rules; then the mutant is not run."""
    area: str = ""

    @property
    def all_edits(self) -> tuple[Edit, ...]:
        """What the mutant changes."""
        return self.edits or (Edit(self.file, self.old, self.new),)

    @property
    def unit_tests(self) -> tuple[str, ...]:
        """The test files of the mutated modules."""
        if self.unit:
            return self.unit
        found: list[str] = []
        for edit in self.all_edits:
            path = Path(edit.file)
            folder = ROOT / "tests" / "unit" / path.parent
            found += [
                str(p.relative_to(ROOT)) for p in sorted(folder.glob(f"test_{path.stem}*.py"))
            ]
        return tuple(dict.fromkeys(found))

    def sources(self) -> dict[str, str]:
        """The mutated text of each file. Raises StaleError if an old text is not there exactly
        once."""
        texts: dict[str, str] = {}
        for edit in self.all_edits:
            if edit.file not in texts:
                texts[edit.file] = (ROOT / edit.file).read_text(encoding="utf-8")
            text = texts[edit.file]
            if (count := text.count(edit.old)) != 1:
                raise StaleError(
                    f"{self.name}: {edit.file} has its old text {count} times:\n{edit.old}"
                )
            texts[edit.file] = text.replace(edit.old, edit.new)
        for file, text in texts.items():
            _check_only_bodies(self.name, file, text)
        return texts


class _File(msgspec.Struct, forbid_unknown_fields=True):
    mutants: list[dict[str, Any]]


def load() -> list[Mutant]:
    """All mutants of all files. Raises StaleError if two have the same name, or are the
    same bug."""
    mutants: list[Mutant] = []
    for path in sorted(FOLDER.glob("*.toml")):
        values = msgspec.toml.decode(path.read_bytes(), type=_File).mutants
        mutants += [msgspec.convert({**value, "area": path.stem}, Mutant) for value in values]
    names = [mutant.name for mutant in mutants]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise StaleError(f"names that two mutants have: {', '.join(twice)}")
    bugs: dict[object, str] = {}
    for mutant in mutants:
        edits = [(edit.file, edit.old.strip(), edit.new.strip()) for edit in mutant.all_edits]
        first = bugs.setdefault((mutant.killers, *edits), mutant.name)
        if first != mutant.name:
            raise StaleError(f"one bug under two names: {first} and {mutant.name}")
    return mutants


def chosen(mutants: Sequence[Mutant], names: Sequence[str]) -> list[Mutant]:
    """The mutants of these names; all that are not equivalent if none is named. Raises KeyError for
    an unknown name."""
    if not names:
        return [mutant for mutant in mutants if not mutant.equivalent]
    by_name = {mutant.name: mutant for mutant in mutants}
    return [by_name[name] for name in names]


def evenly(mutants: Sequence[Mutant], number_max: int) -> list[Mutant]:
    """At most so many mutants: of each file in turn, spread evenly over it.

    Always the same ones of a tree. Any change of a source that has mutants moves all of them on,
    so that those which a change saves from being found are not missed for ever.
    """
    areas: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        areas.setdefault(mutant.area, []).append(mutant)
    shares = dict.fromkeys(areas, 0)
    left = min(number_max, len(mutants))
    while left:
        for area in areas:
            if left and shares[area] < len(areas[area]):
                shares[area] += 1
                left -= 1
    turn = _turn(mutants)
    return [
        found[(turn + index * len(found) // shares[area]) % len(found)]
        for area, found in areas.items()
        for index in range(shares[area])
    ]


def _turn(mutants: Sequence[Mutant]) -> int:
    """A number that the sources of these mutants decide."""
    files = {edit.file for mutant in mutants for edit in mutant.all_edits}
    return zlib.crc32(b"".join((ROOT / file).read_bytes() for file in sorted(files)))


def _check_only_bodies(name: str, file: str, text: str) -> None:
    """A mutant replaces the code of running functions, so it may change nothing outside of them."""
    before = _outside((ROOT / file).read_text(encoding="utf-8"))
    if before != _outside(text):
        raise StaleError(f"{name}: changes {file} outside of the bodies of functions")


@functools.lru_cache(maxsize=256)
def _outside(text: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [ast.Pass()]
    return ast.dump(tree)
