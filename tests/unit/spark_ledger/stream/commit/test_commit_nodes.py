"""Commits that are looked up while ZooKeeper is restored: the handle asked before the break."""

from __future__ import annotations

import pytest

from spark_ledger.errors import MetadataRestoredError
from spark_ledger.metadata.memory import Fault
from spark_ledger.stream.catalog import StreamCatalog
from tests.unit.spark_ledger.stream.commit.test_history import RESTORED, append
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, Backup, another, run


@pytest.mark.parametrize("end", [2, 3], ids=["another", "the last"])
def test_commits_that_are_read_while_the_store_is_restored_are_not_given_out(end: int) -> None:
    """The handle is told of no break before it asks for them."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        await append(ledgers, 0)
        backup = Backup(ledgers)
        await append(ledgers, 101, 102, 103)
        passed_by = Backup(ledgers)
        backup.restore()
        await append(ledgers, 1, 2)
        breaks = False

        def interpose(name: str, path: str) -> Fault:
            nonlocal breaks
            if breaks and "commits" in path:
                breaks = False
                passed_by.restore(client)
            return Fault()

        client, streams = another(ledgers, interpose)
        stream = await streams.open("s")
        assert (await stream.head()).next_commit == 3
        breaks = True
        with pytest.raises(MetadataRestoredError, match=RESTORED):
            await stream.commits(end - 1, end)
        assert not breaks and not stream._log.memory_bytes

    run(scenario())
