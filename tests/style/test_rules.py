"""The rules in five documents and the code that refers to them: each resolves, each is applied."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.style.diagrams import DOCUMENT, MACHINES, with_diagrams
from tests.style.sources import ROOT, product_sources
from tests.style.test_documents import files

RULEBOOKS = {
    "P": "spark_ledger/protocol/README.md",
    "S": "bookie_server/storage/README.md",
    "T": "spark_ledger/stream/README.md",
    "K": "spark_ledger/keeper/README.md",
    "G": "bookie_server/collection/README.md",
    "R": "spark_ledger/repair/README.md",
}
HEADING = re.compile(r"^### ([GKPRST]\d+)\. \S", re.MULTILINE)
REFERENCE = re.compile(r"\brules? ([GKPRST]\d+(?:(?:, | and | to )[GKPRST]\d+)*)")
RULE = re.compile(r"[GKPRST]\d+")
ALL_OF_A_KIND = re.compile(r"\brules,? ([GKPRST])1 to \1(\d+)")
DESCRIBING = {"ARCHITECTURE.md", "README.md", "CONTRIBUTING.md"}
WHERE = re.compile(r"^\*\*In the code\.\*\*(.*?)(?:\n\n|\Z)", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"`([A-Za-z_][\w.]*)`")

# Names of notes that are not in the repository.
FOREIGN = re.compile(
    r"\bDESIGN(?:\.md)?\b|\bdefects? \d|\border rule of\b|\bD\d{1,2}(?:,| family| in|:)"
)
TEXT = {".py", ".md", ".toml", ".txt", ".proto", ".list"}


@cache
def texts() -> dict[str, str]:
    """Every text file of the repository but this one."""
    paths = [ROOT / name for name in files() if Path(name).suffix in TEXT]
    return {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for path in sorted(paths)
        if path.is_file() and path != Path(__file__)
    }


@cache
def rules() -> dict[str, str]:
    """Each rule with the document that states it."""
    return {
        rule: document
        for letter, document in RULEBOOKS.items()
        for rule in HEADING.findall(texts()[document])
        if rule.startswith(letter)
    }


def references(text: str) -> Iterator[str]:
    """The rules that a text refers to, as in ``(rule P7)`` or ``rules P12 and P13``."""
    for found in REFERENCE.findall(text):
        yield from RULE.findall(found)


def test_rules_are_numbered_from_one_without_a_gap() -> None:
    for letter, document in RULEBOOKS.items():
        numbers = [int(rule[1:]) for rule in HEADING.findall(texts()[document])]
        assert numbers == list(range(1, len(numbers) + 1)) and numbers, (letter, numbers)


def test_documents_that_name_all_rules_of_a_kind_name_the_last_one() -> None:
    """As in "rules S1 to S20": such a range is forgotten when a rule is added."""
    last = {letter: max(int(r[1:]) for r in rules() if r[0] == letter) for letter in RULEBOOKS}
    outdated = [
        f"{path}: {letter}1 to {letter}{number}"
        for path, text in texts().items()
        if path in DESCRIBING or path.endswith("__init__.py")
        for letter, number in ALL_OF_A_KIND.findall(text)
        if int(number) != last[letter]
    ]
    assert not outdated, "\n".join(outdated)


@pytest.mark.parametrize("letter", RULEBOOKS)
def test_every_rule_says_where_it_is_applied(letter: str) -> None:
    """By names of functions, classes and files that product code has."""
    text = texts()[RULEBOOKS[letter]]
    sections = re.split(r"^(?=#{2,3} )", text, flags=re.MULTILINE)
    missing, unknown = [], []
    for section in sections:
        heading = HEADING.match(section)
        if heading is None:
            continue
        where = WHERE.search(section)
        names = NAMED.findall(where[1]) if where else []
        if not names:
            missing.append(heading[1])
        unknown += [f"{heading[1]}: {n}" for n in names if n not in defined() and "." not in n]
    assert not missing and not unknown, (missing, unknown)


@cache
def defined() -> frozenset[str]:
    """Functions and classes of the product; ``test_documents`` resolves methods and files."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return frozenset(
        node.name
        for source in product_sources()
        for node in ast.walk(source.tree)
        if isinstance(node, kinds)
    )


def test_references_to_rules_resolve() -> None:
    unknown = [
        f"{path}: rule {rule}"
        for path, text in texts().items()
        for rule in references(text)
        if rule not in rules()
    ]
    assert not unknown, "\n".join(unknown)


def test_rules_are_applied_by_product_code() -> None:
    applied = {
        rule
        for path, text in texts().items()
        if path.endswith(".py") and path.startswith(("spark_ledger", "bookie_server", "connector"))
        for rule in references(re.sub(r"\brules [A-Z]\d+ to [A-Z]\d+", "", text))
    }
    assert not rules().keys() - applied, "no line of the product refers to these rules"


def test_no_reference_leads_out_of_the_repository() -> None:
    found = [
        f"{path}: {match[0]!r}"
        for path, text in texts().items()
        for match in FOREIGN.finditer(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(rule P7)", ["P7"]),
        ("see rules P12 and S3, and P1", ["P12", "S3"]),
        ("rules P14 to P16", ["P14", "P16"]),
        ("a rule of thumb, P4 alone", []),
    ],
)
def test_references_are_found_in_text(text: str, expected: list[str]) -> None:
    assert list(references(text)) == expected


@pytest.mark.parametrize("text", ["(DESIGN 5.4)", "defect 2 of", "D5, #3005", "D2 family"])
def test_foreign_references_are_refused(text: str) -> None:
    assert FOREIGN.search(text)


def test_diagrams_show_the_tables_of_the_machines() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert all(f"<!-- transitions: {machine} -->" in text for machine in MACHINES)
    assert text == with_diagrams(text), "run python -m tests.style.diagrams"
