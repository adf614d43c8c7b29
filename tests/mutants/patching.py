"""Puts a mutant into this process: exchanges the code of functions, and changes no file.

Functions that exist get the code of the mutated source, wherever they were imported to, so no
module is loaded again. A process does this once, and then ends.
"""

from __future__ import annotations

import gc
import importlib
from types import CodeType, FunctionType

from tests.mutants.catalog import ROOT, Mutant


def put_in(mutant: Mutant) -> None:
    """Exchange the code of every function of the mutated files."""
    for file, text in mutant.sources().items():
        assert exchange(file, text), f"{mutant.name} changes no function of {file}"


def exchange(file: str, text: str) -> int:
    """Give the functions of a file the code of another text. Returns how many have changed."""
    importlib.import_module(file.removesuffix(".py").replace("/", "."))
    path = str(ROOT / file)
    codes = _codes(compile(text, path, "exec", dont_inherit=True))
    changed = 0
    for thing in gc.get_objects():
        if not isinstance(thing, FunctionType) or thing.__code__.co_filename != path:
            continue
        code = codes.get(thing.__code__.co_qualname)
        if code is not None and code.co_freevars == thing.__code__.co_freevars:
            changed += _differ(thing.__code__, code)
            thing.__code__ = code
    for thing in gc.get_objects():
        if hasattr(type(thing), "cache_clear") and hasattr(thing, "__wrapped__"):
            thing.cache_clear()
    return changed


def _codes(code: CodeType) -> dict[str, CodeType]:
    found: dict[str, CodeType] = {}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found[constant.co_qualname] = constant
            found.update(_codes(constant))
    return found


def _differ(one: CodeType, other: CodeType) -> bool:
    if len(one.co_consts) != len(other.co_consts):
        return True
    constants = zip(one.co_consts, other.co_consts, strict=True)
    return (one.co_code, one.co_names, one.co_varnames) != (
        other.co_code,
        other.co_names,
        other.co_varnames,
    ) or any(
        _differ(a, b) if isinstance(a, CodeType) and isinstance(b, CodeType) else a != b
        for a, b in constants
    )
