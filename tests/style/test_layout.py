"""Sizes and manners of every source file: short functions, a first line with the job, no debts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.style.sources import ROOT, Source, sources

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500
LINE_COLUMNS_MAX = 100

# Exceptions, each with its reason: "path" or "path::function".
LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}

DEBT = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|X" r"XX)\b|raise NotImplemented" r"Error")

# A link and a remark to a tool cannot be broken into two lines; they do not count.
UNBREAKABLE = re.compile(r"(\s*# (?:type: ignore|noqa|pragma).*|\S*://\S*)$")

Functions = ast.FunctionDef | ast.AsyncFunctionDef


def functions(source: Source) -> Iterator[tuple[Functions, int]]:
    """Every function with its number of lines."""
    for node in ast.walk(source.tree):
        if isinstance(node, Functions):
            yield node, (node.end_lineno or 0) - node.lineno + 1


def test_functions_fit_on_a_screen() -> None:
    long = [
        f"{source.path}:{node.lineno}: {node.name} has {lines} lines"
        for source in sources()
        for node, lines in functions(source)
        if lines > FUNCTION_LINES_MAX and f"{source.path}::{node.name}" not in LONG_FUNCTIONS
    ]
    assert not long, "\n".join(long)


def test_files_are_short() -> None:
    long = [
        f"{source.path} has {lines} lines"
        for source in sources()
        if (lines := len(source.text.splitlines())) > FILE_LINES_MAX
        and source.path not in LONG_FILES
    ]
    assert not long, "\n".join(long)


def test_lines_are_short() -> None:
    wide = [
        f"{source.path}:{number}: {len(line)} columns"
        for source in sources()
        for number, line in enumerate(source.text.splitlines(), 1)
        if len(line) > LINE_COLUMNS_MAX and len(UNBREAKABLE.sub("", line)) > LINE_COLUMNS_MAX
    ]
    assert not wide, "\n".join(wide)


def test_first_line_says_the_job() -> None:
    silent = [source.path for source in sources() if source.text.strip() and not says_job(source)]
    assert not silent, f"no docstring on line 1, or an empty first line: {silent}"


def says_job(source: Source) -> bool:
    docstring = ast.get_docstring(source.tree) or ""
    return source.text.startswith(('"""', 'r"""')) and bool(docstring.partition("\n")[0].strip())


def test_no_debts() -> None:
    found = [
        f"{source.path}:{number}: {line.strip()}"
        for source in sources()
        for number, line in enumerate(source.text.splitlines(), 1)
        if DEBT.search(line)
    ]
    assert not found, "\n".join(found)


def test_exceptions_are_still_needed() -> None:
    by_path = {source.path: source for source in sources()}
    for path in LONG_FILES:
        assert len(by_path[path].text.splitlines()) > FILE_LINES_MAX, f"{path} is short now"
    for name in LONG_FUNCTIONS:
        path, _, function = name.partition("::")
        lengths = [n for node, n in functions(by_path[path]) if node.name == function]
        assert max(lengths, default=0) > FUNCTION_LINES_MAX, f"{name} is short now"


def test_test_folders_are_packages() -> None:
    """Two test files of one name in two folders clash unless their folders are packages."""
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    missing = [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()]
    assert not missing


def test_functions_within_functions_are_used() -> None:
    """A test whose scenario nobody runs passes whatever it says."""
    unused = [
        f"{source.path}:{inner.lineno}: {outer.name} does not use {inner.name}"
        for source in sources()
        for outer, _ in functions(source)
        for inner in outer.body
        if isinstance(inner, Functions)
        and not inner.decorator_list
        and inner.name not in {n.id for n in ast.walk(outer) if isinstance(n, ast.Name)}
    ]
    assert not unused, "\n".join(unused)


def test_modules_of_tests_draw_nothing_when_they_are_imported() -> None:
    """Workers that share the tests have to give them the same names: chance and clocks are for
    within a test."""
    draws = {"SystemRandom", "randrange", "randint", "time_ns", "monotonic_ns", "uuid4", "urandom"}
    found = [
        f"{source.path}:{call.lineno}"
        for source in sources()
        if source.path.startswith("tests/") and any(f"{name}(" in source.text for name in draws)
        for node in source.tree.body
        if not isinstance(node, ast.ClassDef)
        for part in (node.decorator_list if isinstance(node, Functions) else [node])
        for call in ast.walk(part)
        if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in draws
    ]
    assert not found, found
