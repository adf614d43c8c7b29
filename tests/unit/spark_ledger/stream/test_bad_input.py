"""What no metadata node can hold is refused before it is written: nobody could read it again."""

from __future__ import annotations

from typing import Any

import pytest

from spark_ledger.errors import ConfigurationError
from spark_ledger.stream.catalog import StreamCatalog
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, another, loose, run


@pytest.mark.parametrize(
    "config",
    [
        {"entry_bytes": 70000.5},
        {"entry_bytes": 1e5},
        {"entry_bytes": "65536"},
        {"segment_roll_bytes": 1e9},
        {"segment_roll_bytes": 2**63},
        {"segment_roll_bytes": None},
        {"segment_roll_age_s": float("inf")},
        {"segment_roll_age_s": float("nan")},
        {"segment_roll_age_s": "5"},
    ],
)
def test_a_stream_that_could_not_be_opened_is_not_made(config: dict[str, Any]) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        with pytest.raises(ConfigurationError, match=next(iter(config))):
            await StreamCatalog(ledgers).create("s", SCHEMA, **config)
        assert await StreamCatalog(ledgers).names() == []

    run(scenario())


def test_what_is_allowed_is_read_back() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        made = await StreamCatalog(ledgers).create(
            "s", SCHEMA, segment_roll_bytes=2**63 - 1, segment_roll_age_s=1
        )
        assert (await another(ledgers)[1].open("s")).config == made.config

    run(scenario())


@pytest.mark.parametrize(
    "who",
    [
        {"run_id": None},
        {"run_id": 5},
        {"run_id": "\ud800"},
        {"run_id": "x" * 201},
        {"sink_id": "\udfff", "transaction_id": 1},
        {"sink_id": "", "transaction_id": 1},
        {"sink_id": "x" * 201, "transaction_id": 1},
        {"sink_id": b"q", "transaction_id": 1},
    ],
)
def test_a_commit_that_could_not_be_read_is_not_made(who: dict[str, Any]) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        with pytest.raises(ConfigurationError, match=next(iter(who)).replace("_", " ")):
            await stream.commit_segments([loose()], **who)
        commit = await stream.commit_segments([loose()], run_id="é" * 200)
        reader = await another(ledgers)[1].open("s")
        assert await reader.commits(0, 1) == [commit]
        assert (await reader.head()).next_commit == 1

    run(scenario())
