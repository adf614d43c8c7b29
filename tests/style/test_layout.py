"""Sizes and manners of every source file: short functions, a first line with the job, no debts."""

from __future__ import annotations

import ast
import re

import pytest

from tests.style.sources import EVERYTHING, ROOT, Source, sources

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500
LINE_COLUMNS_MAX = 100

# Exceptions, each with its reason: "path" or "path::function".
LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}

DEBT = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|X" r"XX)\b|raise NotImplemented" r"Error")

every_source = pytest.mark.parametrize("source", sources(), ids=lambda source: source.path)


@every_source
def test_functions_fit_on_a_screen(source: Source) -> None:
    long = [
        f"{source.path}:{node.lineno}: {node.name} has {lines} lines"
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES_MAX
        and f"{source.path}::{node.name}" not in LONG_FUNCTIONS
    ]
    assert not long, "\n".join(long)


@every_source
def test_files_and_lines_are_short(source: Source) -> None:
    lines = source.text.splitlines()
    assert len(lines) <= FILE_LINES_MAX or source.path in LONG_FILES, f"{len(lines)} lines"
    wide = [number for number, line in enumerate(lines, 1) if len(line) > LINE_COLUMNS_MAX]
    assert not wide, f"{source.path}: over {LINE_COLUMNS_MAX} columns in lines {wide}"


@every_source
def test_first_line_says_the_job(source: Source) -> None:
    if not source.text.strip():
        return  # an empty __init__.py has no job
    docstring = ast.get_docstring(source.tree)
    assert docstring, f"{source.path} has no module docstring"
    first = source.text.splitlines()[0]
    assert first.startswith(('"""', 'r"""')), f"{source.path}: the docstring is not on line 1"
    assert docstring.splitlines()[0].strip(), f"{source.path}: the docstring's first line is empty"


@every_source
def test_no_debts(source: Source) -> None:
    found = [
        f"{source.path}:{number}: {line.strip()}"
        for number, line in enumerate(source.text.splitlines(), 1)
        if DEBT.search(line)
    ]
    assert not found, "\n".join(found)


def test_exceptions_are_still_needed() -> None:
    by_path = {source.path: source for source in sources(EVERYTHING)}
    for path in LONG_FILES:
        assert len(by_path[path].text.splitlines()) > FILE_LINES_MAX, f"{path} is short now"
    for name in LONG_FUNCTIONS:
        path, _, function = name.partition("::")
        lengths = [
            (node.end_lineno or 0) - node.lineno + 1
            for node in ast.walk(by_path[path].tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function
        ]
        assert max(lengths, default=0) > FUNCTION_LINES_MAX, f"{name} is short now"


def test_test_folders_are_packages() -> None:
    """Two test files of one name in two folders clash unless their folders are packages."""
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    missing = [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()]
    assert not missing
