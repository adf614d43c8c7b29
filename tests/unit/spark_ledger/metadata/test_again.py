"""What may be done twice is, behind errors that pass."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.errors import ConflictError, LedgerError, NotFoundError, OutcomeUnknownError
from spark_ledger.limits.metadata import METADATA_ATTEMPTS
from spark_ledger.metadata.base import again


@pytest.mark.parametrize("failures", range(METADATA_ATTEMPTS + 1))
def test_last_attempt_decides(failures: int) -> None:
    tried: list[int] = []

    async def work() -> int:
        tried.append(len(tried))
        if len(tried) <= failures:
            raise [ConflictError, OutcomeUnknownError][len(tried) % 2](f"try {len(tried)}")
        return len(tried)

    if failures == METADATA_ATTEMPTS:
        with pytest.raises(LedgerError, match=f"try {METADATA_ATTEMPTS}"):
            asyncio.run(again(work, ConflictError, OutcomeUnknownError))
    else:
        assert asyncio.run(again(work, ConflictError, OutcomeUnknownError)) == failures + 1


def test_another_error_ends_it() -> None:
    tried: list[int] = []

    async def work() -> None:
        tried.append(1)
        raise NotFoundError("no such node")

    with pytest.raises(NotFoundError):
        asyncio.run(again(work, ConflictError))
    assert tried == [1]
