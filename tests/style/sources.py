"""The Python files of this repository: what every style test walks over."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("spark_ledger", "connector", "bookie_server")
EVERYTHING = (*PRODUCT, "benchmarks", "examples", "tests")
GENERATED = frozenset({"bookie_pb2.py", "bookie_pb2_grpc.py"})


@dataclass(frozen=True)
class Source:
    """One file. ``module`` is its dotted name; a package carries the name of its folder."""

    path: str
    module: str
    is_package: bool
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Parsed when a test first walks over it: each process of `make test` imports all."""
        return ast.parse(self.text, self.path)


@cache
def sources() -> tuple[Source, ...]:
    """Every file of the repository, generated code left out."""
    files = [path for folder in EVERYTHING for path in sorted((ROOT / folder).rglob("*.py"))]
    files.append(ROOT / "setup.py")
    return tuple(_read(path) for path in files if path.name not in GENERATED)


def product_sources() -> list[Source]:
    """The files that are installed."""
    return [source for source in sources() if source.path.startswith(PRODUCT)]


def _read(path: Path) -> Source:
    relative = path.relative_to(ROOT)
    parts = list(relative.with_suffix("").parts)
    is_package = parts[-1] == "__init__"
    text = path.read_text(encoding="utf-8")
    module = ".".join(parts[:-1] if is_package else parts)
    return Source(relative.as_posix(), module, is_package, text)


def imports(source: Source) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything a file imports, at any depth of its code.

    ``from a import b`` yields ``a.b``: b may be a module, and a rule on ``a`` covers it anyway.
    """
    package = source.module if source.is_package else source.module.rpartition(".")[0]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
