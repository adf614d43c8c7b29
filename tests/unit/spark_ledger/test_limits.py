"""Limits have reasons, and fit each other."""

from __future__ import annotations

import ast
import inspect

from spark_ledger import limits


def test_every_limit_says_why() -> None:
    body = ast.parse(inspect.getsource(limits)).body
    bare = []
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign):
            continue
        assert isinstance(statement.target, ast.Name)
        reason = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        if not reason and statement.target.id not in {"KIB", "MIB", "GIB"}:
            bare.append(statement.target.id)
    assert not bare


def test_limits_fit_each_other() -> None:
    largest_frame = limits.ENTRY_PAYLOAD_BYTES_MAX + limits.ENTRY_FRAME_OVERHEAD_BYTES_MAX
    assert largest_frame < limits.MESSAGE_BYTES_MAX, "the largest entry fits into a message"
    assert largest_frame < limits.READ_REQUEST_BYTES_MAX
    assert limits.WRITER_BYTES_IN_FLIGHT_MAX > limits.ENTRY_PAYLOAD_BYTES_MAX
    assert limits.BOOKIE_APPEND_BYTES_IN_FLIGHT_MAX > limits.WRITER_BYTES_IN_FLIGHT_MAX
    assert limits.LEDGER_METADATA_BYTES_MAX < limits.METADATA_REQUEST_BYTES_MAX < 2**20
    assert limits.SLOW_BOOKIE_GRACE_S < limits.ADD_TIMEOUT_S
    assert limits.SPECULATIVE_READ_DELAY_S < limits.READ_TIMEOUT_S
    assert limits.EXPLICIT_LAC_DELAY_S < limits.SPECULATIVE_READ_DELAY_S
