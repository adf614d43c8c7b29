"""What a process keeps is in the table of ARCHITECTURE.md: caches, their bounds, their tests.

Found without asking anybody: least-recently-used dictionaries, decorated functions, and containers
of modules. A plain dictionary of an object may be a cache as well; nobody can tell it from one that
a call fills and drops.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.style.sources import ROOT, Source, product_sources

TITLE = "## What is kept in memory"
ONE_OF_A_PROCESS = {"_statm", "_fallocate"}
"""Caches with one item."""


def table() -> str:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    return text.partition(TITLE)[2].partition("\n## ")[0]


def caches(source: Source) -> Iterator[str]:
    """The names of what keeps something for longer than a call."""
    for node in ast.walk(source.tree):
        match node:
            case ast.AnnAssign(target=ast.Attribute(attr=name), annotation=kind):
                if ast.unparse(kind).startswith("OrderedDict["):
                    yield name
            case ast.FunctionDef(name=name, decorator_list=decorators):
                if any("cache" in ast.unparse(each) for each in decorators):
                    yield name
    for node in source.tree.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                if ast.unparse(value) in ("{}", "[]", "set()"):
                    yield name


def test_caches_are_in_the_table() -> None:
    known = table()
    missing = [
        f"{source.path}: {name}"
        for source in product_sources()
        for name in caches(source)
        if not re.search(rf"\b{name}\b", known) and name not in ONE_OF_A_PROCESS
    ]
    assert not missing, f"say in ARCHITECTURE.md, '{TITLE}', what bounds them: {missing}"


def test_bounds_and_tests_of_the_table_exist() -> None:
    text = "\n".join(source.text for source in product_sources())
    bounds = re.findall(r"`([A-Z][A-Z_]{5,})`", table())
    assert bounds and not [name for name in bounds if f"{name}: Final = " not in text]
    tests = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert not [name for name in re.findall(r"`(test_\w+\.py)`", table()) if name not in tests]


def test_metrics_of_the_table_exist() -> None:
    code = (ROOT / "bookie_server" / "service" / "prometheus.py").read_text(encoding="utf-8")
    assert not [n for n in re.findall(r"`(bookie_\w+)`", table()) if f'"{n}"' not in code]
