"""A writer's own entry size and compression, in the place of those of its stream."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_ledger.limits import KIB
from spark_ledger.stream.catalog import StreamCatalog
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, run

ROWS = pa.table({"n": range(200), "text": ["the same text, " * 10] * 200}, schema=SCHEMA)


async def _written(of_stream: dict[str, object], of_writer: dict[str, object]) -> list[int]:
    """The sizes of the entries that a writer makes of the rows."""
    ledgers = FakeLedgers()
    stream = await StreamCatalog(ledgers).create("s", SCHEMA, **of_stream)  # type: ignore[arg-type]
    writer = stream.writer(**of_writer)  # type: ignore[arg-type]
    await writer.write(ROWS)
    await writer.finish()
    await writer.close()
    (ledger,) = ledgers.ledgers.values()
    return [len(payload) for payload in ledger.payloads]


@pytest.mark.parametrize(
    ("of_stream", "of_writer"),
    [
        ({"compression": "none"}, {"entry_bytes": 4 * KIB}),
        ({"compression": "none", "entry_bytes": 4 * KIB}, {"entry_bytes": 16 * KIB}),
        ({"compression": "none"}, {"compression": "zstd"}),
        ({"compression": "zstd"}, {"compression": "none"}),
        ({"entry_bytes": 4 * KIB}, {"compression": "none"}),
    ],
)
def test_options_of_a_writer_are_those_that_count(
    of_stream: dict[str, object], of_writer: dict[str, object]
) -> None:
    async def scenario() -> None:
        sizes = await _written(of_stream, of_writer)
        assert sizes == await _written({**of_stream, **of_writer}, {})
        assert sizes != await _written(of_stream, {})

    run(scenario())
