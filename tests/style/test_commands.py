"""Commands in the documents can be typed: programs, options, test files and test names exist."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import click
import pytest

from spark_ledger.cli.app import GROUPS, root
from tests.style.sources import ROOT, sources
from tests.style.test_documents import DOCUMENTS, SPAN

SHELL = re.compile(r"^```(?:sh|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TESTS = {".py", ".txt"}
OWN = ("tests", "benchmarks", "spark_ledger", "bookie_server")
DOCUMENTED = [path for path in DOCUMENTS if path.name != "CHANGELOG.md"]  # it tells of the past


def commands(document: Path) -> Iterator[list[str]]:
    """Each command as words: of code spans, and of lines of a shell, with or without a prompt."""
    text = document.read_text(encoding="utf-8")
    lines = [line for block in SHELL.findall(text) for line in block.splitlines()]
    for line in (*SPAN.findall(text), *lines):
        for part in line.removeprefix("$ ").partition(" #")[0].replace("&&", "|").split("|"):
            if re.match(r"(?:ledger [a-z]|python -m \S)", part.strip()):
                yield shlex.split(part)


def options(words: list[str]) -> list[str]:
    return [word.partition("=")[0] for word in words if word.startswith("--")]


def wrong_with_ledger(words: list[str]) -> list[str]:
    """What the ``ledger`` command does not know of this call of it."""
    command: click.Command = root
    context = click.Context(root)
    for word in words[1:]:
        if not isinstance(command, click.Group) or word.startswith("-"):
            break
        found = command.get_command(context, word)
        if found is None:
            return [word]
        command = found
    known = {
        name for each in command.get_params(context) for name in (*each.opts, *each.secondary_opts)
    }
    return [option for option in options(words) if option not in known]


@cache
def texts_below(folder: str) -> frozenset[str]:
    """Every string in the code of a package or module: the options of its program are there."""
    return frozenset(
        node.value
        for source in sources()
        if source.path == f"{folder}.py" or source.path.startswith(f"{folder}/")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def wrong_with_module(words: list[str]) -> list[str]:
    """The module, if it is none of ours that runs, or the options that its code never names."""
    module = words[2]
    if module.partition(".")[0] not in OWN:
        return []
    folder = module.replace(".", "/")
    if not (ROOT / f"{folder}.py").exists() and not (ROOT / folder / "__main__.py").exists():
        return [module]
    return [option for option in options(words) if option not in texts_below(folder)]


@cache
def text_of(path: str) -> str:
    """What the files of a test are called and say; scenes of scenarios are tests, too."""
    place = ROOT / path
    files = [place] if place.is_file() else list(place.rglob("*"))
    texts = [file.read_text(encoding="utf-8") for file in files if file.suffix in TESTS]
    return "\n".join((*map(str, files), *texts)).lower()


def wrong_with_pytest(words: list[str]) -> list[str]:
    """Paths that do not exist, and words behind ``-k`` that nothing in the paths is called."""
    paths = [word for word in words[3:] if word.startswith("tests") and not word.endswith("...")]
    wrong = [path for path in paths if not (ROOT / path.partition("::")[0]).exists()]
    text = "".join(text_of(path.partition("::")[0]) for path in paths or ["tests"])
    for before, word in pairwise(words):
        if before == "-k":
            names = [name for name in word.split() if name not in ("and", "or", "not")]
            wrong += [name for name in names if name.strip("()").lower() not in text]
    return wrong + [
        path for path in paths for name in path.split("::")[1:] if name.lower() not in text
    ]


def wrong_with(words: list[str]) -> list[str]:
    if words[0] == "ledger":
        return wrong_with_ledger(words)
    return wrong_with_pytest(words) if words[2] == "pytest" else wrong_with_module(words)


@pytest.mark.parametrize("document", DOCUMENTED, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_of_a_document_can_be_typed(document: Path) -> None:
    wrong = {" ".join(words): found for words in commands(document) if (found := wrong_with(words))}
    assert not wrong


def test_groups_of_commands_are_described_once() -> None:
    """``ledger --help`` must not load the groups, so their first lines stand in a table."""
    context = click.Context(root)
    groups = {name: root.get_command(context, name) for name in root.list_commands(context)}
    assert {name: group.help for name, group in groups.items() if group} == GROUPS


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("ledger streams show clicks --json", []),
        ("ledger bookies collect --accept-all", ["--accept-all"]),
        ("ledger streams forget", ["forget"]),
        ("python -m tests.sim --schedules 300", []),
        ("python -m tests.sim --scedules 300", ["--scedules"]),
        ("python -m tests.simulation", ["tests.simulation"]),
        ("python -m pytest tests/style -k commands", []),
        (
            "python -m pytest tests/stile -k nobody_is_called_so",
            ["tests/stile", "nobody_is_called_so"],
        ),
    ],
)
def test_commands_that_cannot_be_typed_are_found(command: str, wrong: list[str]) -> None:
    assert wrong_with(shlex.split(command)) == wrong
