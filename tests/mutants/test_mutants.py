"""The suites still find every bug that is put in on purpose (``python -m tests.mutants``)."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from tests.effort import MUTANTS
from tests.mutants import catalog
from tests.mutants.catalog import ROOT, Mutant, load
from tests.mutants.running import Verdict
from tests.mutants.suites import kills_before

AT_LEAST = {
    "protocol": 70,
    "storage": 50,
    "core": 30,
    "identity": 15,
    "descriptors": 7,
    "hostile": 12,
    "load": 32,
    "stream": 56,
    "manifests": 15,
    "connector": 90,
    "metadata": 45,
    "client": 60,
    "service": 30,
}


class Finding(msgspec.Struct):
    """What ruff says of a mutated text."""

    code: str | None
    filename: str
    message: str

    def brings(self, file: str) -> bool:
        """Whether the name it is about is none of the source: the mutant brings it."""
        name = self.message.split("`")[1]
        return not re.search(rf"\b{name}\b", (ROOT / file).read_text(encoding="utf-8"))


HANGS_AFTER_S = 280
"""Of the command: it takes about a minute, and several times that beside other work."""


def gate(*options: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own: it forks, which a test runner must not."""
    command = [sys.executable, "-m", "tests.mutants", *options]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=HANGS_AFTER_S, check=False
    )


@pytest.fixture(scope="module")
def mutated() -> list[tuple[Mutant, dict[str, str]]]:
    """Every mutant with its texts."""
    return [(mutant, mutant.sources()) for mutant in load()]


def test_every_mutant_fits_the_sources(mutated: list[tuple[Mutant, dict[str, str]]]) -> None:
    areas: Counter[str] = Counter()
    for mutant, _ in mutated:
        areas[mutant.area] += not mutant.equivalent
        assert mutant.resembles and mutant.killers, mutant.name
    assert {area: areas[area] >= least for area, least in AT_LEAST.items()} == dict.fromkeys(
        AT_LEAST, True
    )


def test_no_mutant_uses_a_name_that_is_not_there(
    tmp_path: Path, mutated: list[tuple[Mutant, dict[str, str]]]
) -> None:
    """Any test that passes there would find it, and prove nothing about the bug. And none sets a
    name that nothing reads, because a later change of the source took it out: it changes nothing,
    and only a replay of all would tell."""
    sources: dict[str, str] = {}
    for mutant, texts in mutated:
        for number, (file, text) in enumerate(texts.items()):
            path = tmp_path / f"{mutant.name}-{number}.py"
            path.write_text(text, encoding="utf-8")
            sources[str(path)] = file
    command = ["ruff", "check", "--isolated", "--no-cache", "--output-format", "json"]
    result = subprocess.run(
        [sys.executable, "-m", *command, "--select", "F821,F822,F823,F841", str(tmp_path)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    found = msgspec.json.decode(result.stdout, type=list[Finding])
    wrong = [each for each in found if each.code != "F841" or each.brings(sources[each.filename])]
    assert not wrong and result.returncode in (0, 1), f"{wrong} {result.stderr}"


def test_every_mutant_was_killed() -> None:
    assert kills_before().keys() == {m.name for m in load() if not m.equivalent}


def test_share_of_mutants_changes_when_their_source_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "ROOT", tmp_path)
    mutants = [Mutant(f"{n}", "a bug", ("unit",), file="a.py", area="core") for n in range(10)]
    shares: list[list[str]] = []
    for text in ("a = 1", "a = 1", "a = 2", "a = 3", "a = 4"):
        (tmp_path / "a.py").write_text(text, encoding="utf-8")
        shares.append([mutant.name for mutant in catalog.evenly(mutants, 3)])
    assert all(len(set(share)) == 3 for share in shares)
    assert shares[0] == shares[1]
    assert len({tuple(share) for share in shares}) > 1


@pytest.mark.timeout(HANGS_AFTER_S + 10)
def test_mutants_are_killed_again(tmp_path: Path) -> None:
    """At the seed that killed them before, or soon behind it."""
    path = tmp_path / "verdicts.json"
    result = gate("--replay", "--at-most", str(MUTANTS.test), "--json", str(path))
    assert path.exists(), result.stderr
    verdicts = msgspec.json.decode(path.read_bytes(), type=list[Verdict])
    survivors = [f"{v.name} {v.error}" for v in verdicts if v.kill is None]
    assert not survivors, f"{survivors}: run python -m tests.mutants --only ..."
    assert result.returncode == 0
    assert len(verdicts) == MUTANTS.test
    by_name = {mutant.name: mutant.area for mutant in load()}
    assert {by_name[verdict.name] for verdict in verdicts} == set(by_name.values()), "a file each"


def test_a_mutant_that_survives_fails_the_gate() -> None:
    """A harmless change is not killed, so the suites do not report just anything."""
    result = gate("--only", "recovery-confirms-while-choosing", "--effort", "0.02")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "SURVIVES" in result.stdout


def test_unknown_mutant_is_an_error() -> None:
    result = gate("--only", "no-such-mutant")
    assert result.returncode == 2
    assert "no-such-mutant" in result.stderr
