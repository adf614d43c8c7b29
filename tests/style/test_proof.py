"""PROOF.md and its details are what the tool makes of the figures; what they name is there."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.effort import ONLY_IN_PROOF
from tests.proof.details import COUNTS_PAGE, MUTANTS_PAGE, counts_page, mutants_page
from tests.proof.page import BUGS, PAGE, page
from tests.style.sources import ROOT


@pytest.mark.parametrize(
    ("path", "make"),
    [(PAGE, page), (COUNTS_PAGE, counts_page), (MUTANTS_PAGE, mutants_page)],
    ids=["PROOF.md", "counts", "mutants"],
)
def test_page_is_made_from_the_figures(path: Path, make: Callable[[], str]) -> None:
    assert path.read_text(encoding="utf-8") == make(), "run python -m tests.proof --page"


def test_commands_that_show_a_bug_again_name_tests_that_exist() -> None:
    listed = tomllib.loads(BUGS.read_text(encoding="utf-8"))
    missing = [
        one["see"]
        for one in (*listed["bugs"], *listed["open"])
        if "pytest" in one["see"] and not _selects_something(shlex.split(one["see"]))
    ]
    assert not missing


def test_tests_of_make_proof_exist() -> None:
    missing = []
    for test in ONLY_IN_PROOF:
        path, _, name = test.partition("::")
        file = ROOT / path
        if not file.exists() or f"def {name}(" not in file.read_text(encoding="utf-8"):
            missing.append(test)
    assert not missing


def _selects_something(command: list[str]) -> bool:
    """Whether its paths exist, and its -k is in the name of a test or of a file below them."""
    paths = [ROOT / word for word in command if word.startswith("tests/")]
    if not all(path.exists() for path in paths):
        return False
    if "-k" not in command:
        return True
    word = command[command.index("-k") + 1]
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*"))]
    return any(
        word in file.name
        or (
            file.suffix == ".py"
            and re.search(rf"def test_\w*{word}", file.read_text(encoding="utf-8"))
        )
        for file in files
    )
