"""What the documents name exists: links, files, classes, options, commands, targets, settings."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import click
import msgspec
import pytest

from bookie_server.config import load
from connector.option_table import OPTIONS
from spark_ledger import errors
from spark_ledger.cli.app import root
from tests.style.sources import ROOT, sources

FOLDERS = (
    *("spark_ledger", "connector", "bookie_server"),
    *("benchmarks", "conf", "docs", "examples", "tests"),
)
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md")),
]
CONNECTOR = ROOT / "connector" / "README.md"
OPERATIONS = ROOT / "bookie_server" / "README.md"
COMMANDS = ROOT / "spark_ledger" / "README.md"
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FILE = re.compile(
    r"(?!/)(?:\.?[\w-]+/)*[\w.-]+(?:/|\.(?:py|md|toml|txt|proto|sh))|(?:[\w-]+/)+[\w-]+"
)
CLASS = re.compile(r"([A-Z][a-z]+(?:[A-Z][a-z0-9]+)+)(?:\.(\w+))?|(_?[A-Z][a-zA-Z]*)\.(\w+)")
LINE_MAX = 120

# Files that a user makes, and names of Spark.
FOREIGN = {"bookie.toml", "Trigger.AvailableNow"}


def prose(document: Path) -> str:
    return FENCE.sub("", document.read_text(encoding="utf-8"))


def spans(document: Path) -> list[str]:
    return SPAN.findall(prose(document))


@cache
def files() -> frozenset[str]:
    """Files and folders that are in the repository or about to be."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    folders = {str(parent) for name in listed for parent in Path(name).parents}
    return frozenset({name for name in listed if (ROOT / name).exists()} | folders)


def is_there(name: str) -> bool:
    """A path from the root, or the end of exactly such a path, as ``stream/codec.py``."""
    wanted = name.rstrip("/")
    return any(path == wanted or path.endswith("/" + wanted) for path in files())


def anchors(document: Path) -> set[str]:
    """Anchors of the headings, made as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", prose(document), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    broken = []
    for link in LINK.findall(prose(document)):
        target, _, anchor = link.partition("#")
        if "://" in target:
            continue
        path = (document.parent / target).resolve() if target else document
        is_known = path.exists() and (not anchor or anchor in anchors(path))
        if not is_known:
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_are_named_exist(document: Path) -> None:
    named = [span for span in spans(document) if FILE.fullmatch(span)]
    assert not [name for name in named if name not in FOREIGN and not is_there(name)]


@cache
def class_members() -> dict[str, set[str]]:
    """Every class of the repository with the names of its methods and of the fields they set."""
    found: dict[str, set[str]] = {}
    for source in sources():
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef):
                methods = {m.name for m in node.body if isinstance(m, Functions)}
                found.setdefault(node.name, set()).update(methods, _fields(node))
    return found


def _fields(node: ast.ClassDef) -> set[str]:
    return {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }


Functions = ast.FunctionDef | ast.AsyncFunctionDef


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_classes_that_are_named_exist(document: Path) -> None:
    known, unknown = class_members(), []
    for span in spans(document):
        match = CLASS.fullmatch(span)
        if match is None or span in FOREIGN:
            continue
        name, member = match[1] or match[3], match[2] or match[4]
        if name not in known or (member and member not in known[name]):
            unknown.append(span)
    assert not unknown


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_lines_of_text_are_short_enough_to_read_and_to_compare(document: Path) -> None:
    """Tables, headings and code are as long as they have to be."""
    lines = [
        line for line in prose(document).splitlines() if not line.lstrip().startswith(("|", "#"))
    ]
    assert not [line for line in lines if len(line) > LINE_MAX and " " in line.strip("- ")]


def test_errors_that_the_connector_explains_are_ours() -> None:
    named = {span for span in spans(CONNECTOR) if re.fullmatch(r"[A-Z]\w+Error", span)}
    assert named, "the connector's README says what to do about errors"
    assert not [name for name in named if not hasattr(errors, name)]


def test_metrics_that_operators_watch_are_exposed() -> None:
    service = ROOT / "bookie_server" / "service"
    code = "".join(path.read_text(encoding="utf-8") for path in sorted(service.glob("*.py")))
    named = {span for span in spans(OPERATIONS) if re.fullmatch(r"bookie_[a-z_]+", span)}
    named -= {"bookie_server"}
    assert named and not [name for name in named if f'"{name}"' not in code]


def test_options_table_lists_exactly_the_options_there_are() -> None:
    text = CONNECTOR.read_text(encoding="utf-8")
    table = text.partition("## Options")[2].partition("## ")[0]
    named = re.findall(r"^\| `([\w.]+)` \|", table, re.MULTILINE)
    assert sorted(named) == sorted(option.name for option in OPTIONS)


def command_paths() -> set[str]:
    """``ledger``, its groups and their commands, as typed."""
    context = click.Context(root)
    paths = {"ledger"}
    for name in root.list_commands(context):
        group = root.get_command(context, name)
        assert isinstance(group, click.Group)
        paths.add(f"ledger {name}")
        paths.update(f"ledger {name} {command}" for command in group.commands)
    return paths


def commands_in(text: str) -> set[str]:
    """``ledger <group> <command>`` wherever a command stands: in a code span or after a prompt."""
    lines = [*SPAN.findall(FENCE.sub("", text)), *re.findall(r"^\$ (.+)$", text, re.MULTILINE)]
    return {
        " ".join(match.split())
        for line in lines
        for match in re.findall(r"(?:^|\| )(ledger [a-z]+(?: [a-z]+)?)\b", line)
    }


def test_commands_that_are_named_exist() -> None:
    known = command_paths()
    named = {c for document in DOCUMENTS for c in commands_in(document.read_text("utf-8"))}
    assert named, "the documents show commands"
    assert not named - known


def test_commands_table_lists_every_command() -> None:
    leaves = {path for path in command_paths() if path.count(" ") == 2}
    assert not leaves - commands_in(COMMANDS.read_text(encoding="utf-8"))


def test_make_targets_that_are_named_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    named = {
        match
        for document in DOCUMENTS
        for span in spans(document)
        for match in re.findall(r"^make ([a-z]+)", span)
    }
    assert named and not named - targets


def test_the_bookies_configuration_shows_every_key_with_its_default(tmp_path: Path) -> None:
    """What stands behind a ``#`` in conf/bookie.toml, taken in, changes nothing."""
    text = (ROOT / "conf" / "bookie.toml").read_text(encoding="utf-8")
    shown = re.sub(r"^# (?=\w+ = )", "", text, flags=re.MULTILINE)
    (tmp_path / "as_is.toml").write_text(text, encoding="utf-8")
    (tmp_path / "shown.toml").write_text(shown, encoding="utf-8")
    config = load(tmp_path / "as_is.toml")
    assert load(tmp_path / "shown.toml") == config
    keys = tomllib.loads(shown)
    for section in (None, "listen", "admin", "keeper", "autorecovery", "collection", "storage"):
        part = config if section is None else getattr(config, section)
        given = keys if section is None else keys[section]
        assert {field.name for field in msgspec.structs.fields(part)} <= set(given)
