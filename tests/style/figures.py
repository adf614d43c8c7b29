"""Figures of the sources that tests keep: ``python -m tests.style.figures`` prints them.

A line counts as explanation when a comment or docstring stands on it; blank lines do not count.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable
from typing import Final, TypeGuard

from tests.style.sources import Source, product_sources

EXPLAINED: Final = ("spark_ledger/protocol", "bookie_server/core", "bookie_server/storage/journal")
"""Folders in which every fourth line explains: mistakes there cost data."""

ASSERTED: Final = ("spark_ledger/protocol", "bookie_server/core", "bookie_server/storage")
"""Folders that state in code what must hold."""


def explanation_lines(source: Source) -> int:
    """Lines with a comment or a docstring."""
    marked: set[int] = set()
    for node in ast.walk(source.tree):
        if _is_docstring(node):
            marked.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT:
            marked.add(token.start[0])
    lines = source.text.splitlines()
    return sum(bool(lines[number - 1].strip()) for number in marked)


def _is_docstring(node: ast.AST) -> TypeGuard[ast.Expr]:
    """Also a string behind a constant or an attribute, which explains it."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def explained_share(folder: str) -> float:
    """Explanation lines among the lines of a folder that are not blank, 0 to 1."""
    sources = [source for source in product_sources() if source.path.startswith(folder + "/")]
    lines = sum(bool(line.strip()) for source in sources for line in source.text.splitlines())
    return sum(map(explanation_lines, sources)) / lines


def assertions(folders: Iterable[str]) -> int:
    """Assert statements in these folders."""
    return sum(
        isinstance(node, ast.Assert)
        for source in product_sources()
        if source.path.startswith(tuple(f"{folder}/" for folder in folders))
        for node in ast.walk(source.tree)
    )


def any_uses() -> list[str]:
    """Where product code says ``Any``; imports of the name do not count, nor does the simulated
    event loop: its callbacks and coroutines are typed as asyncio types its own."""
    return [
        f"{source.path}:{node.lineno}"
        for source in product_sources()
        if not source.path.startswith("spark_ledger/lab/simulation/")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Name) and node.id == "Any"
    ]


def main() -> None:
    """Print all figures."""
    for folder in EXPLAINED:
        print(f"{folder}: {explained_share(folder):.0%} of the lines explain")
    print(f"{assertions(ASSERTED)} assertions in {', '.join(ASSERTED)}")
    print(f"{len(any_uses())} uses of Any in product code")


if __name__ == "__main__":
    main()
