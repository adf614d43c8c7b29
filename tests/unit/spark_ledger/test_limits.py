"""Limits have reasons and one home each, and fit each other."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from types import ModuleType

import pytest

from spark_ledger import limits
from spark_ledger.limits import bookie, client, entries

TOPICS = [
    importlib.import_module(f"{limits.__name__}.{topic.name}")
    for topic in pkgutil.iter_modules(limits.__path__)
]


def names(module: ModuleType) -> list[str]:
    """The constants that a module makes, without those that it imports."""
    body = ast.parse(inspect.getsource(module)).body
    targets = [statement.target for statement in body if isinstance(statement, ast.AnnAssign)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.__name__)
def test_every_limit_says_why(topic: ModuleType) -> None:
    body = ast.parse(inspect.getsource(topic)).body
    bare = []
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign):
            continue
        assert isinstance(statement.target, ast.Name)
        reason = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        if not reason:
            bare.append(statement.target.id)
    assert not bare


def test_every_limit_has_one_home() -> None:
    every = [name for topic in [limits, *TOPICS] for name in names(topic)]
    assert len(every) == len(set(every))


def test_limits_fit_each_other() -> None:
    largest_frame = entries.ENTRY_PAYLOAD_BYTES_MAX + entries.ENTRY_FRAME_OVERHEAD_BYTES_MAX
    assert largest_frame < entries.MESSAGE_BYTES_MAX, "the largest entry fits into a message"
    assert largest_frame < entries.READ_REQUEST_BYTES_MAX
    assert client.WRITER_BYTES_IN_FLIGHT_MAX > entries.ENTRY_PAYLOAD_BYTES_MAX
    assert bookie.BOOKIE_APPEND_BYTES_IN_FLIGHT_MAX > client.WRITER_BYTES_IN_FLIGHT_MAX
    assert 3 * entries.LEDGER_METADATA_ENDED_BYTES_MAX < entries.METADATA_REQUEST_BYTES_MAX < 2**20
    assert client.SLOW_BOOKIE_GRACE_S < client.ADD_TIMEOUT_S
    assert client.SPECULATIVE_READ_DELAY_S < client.READ_TIMEOUT_S
    assert client.EXPLICIT_LAC_DELAY_S < client.SPECULATIVE_READ_DELAY_S
