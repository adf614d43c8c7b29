"""How large a transaction to several streams may be."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from spark_ledger.errors import ConfigurationError
from spark_ledger.metadata.base import Operation
from spark_ledger.stream.commit import together
from spark_ledger.stream.several import commit_to
from tests.unit.spark_ledger.stream.commit.test_together import PAIR, World
from tests.unit.spark_ledger.stream.world import loose, run


def test_transaction_of_several_streams_is_measured_with_all_that_it_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Heads and configurations that are replaced count as well as the commits: ZooKeeper would end
    the connection of whoever sends too much."""

    async def scenario(less: int | None) -> int:
        world = World()
        streams, _ = await world.streams()
        columns = pa.schema([pa.field(f"column {n}", pa.int64()) for n in range(50)])
        store = streams[0]._nodes.store
        send, sizes = store.transaction, list[int]()

        async def noting(operations: Sequence[Operation]) -> None:
            sizes.append(sum(len(e.path) + len(getattr(e, "data", b"")) + 64 for e in operations))
            await send(operations)

        monkeypatch.setattr(store, "transaction", noting)
        for stream in streams:
            stream._committer.clock_ms = lambda: 10**12
        if less is not None:
            monkeypatch.setattr(together, "TRANSACTION_BYTES_MAX", whole - less)
        parts = [(stream, [loose(1)]) for stream in streams]
        work = commit_to(parts, new_columns=[columns] * 2, **PAIR)
        if less:
            with pytest.raises(ConfigurationError, match=f"takes {whole} bytes"):
                await work
            assert sizes == []
            return 0
        await work
        return sizes[0]

    whole = run(scenario(None))
    assert whole > 4000
    assert run(scenario(0)) == whole
    run(scenario(1))
