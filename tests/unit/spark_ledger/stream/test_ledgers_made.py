"""What the ledgers are that a stream makes: whose, for what, how many copies, and for how long."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit import committer
from spark_ledger.stream.ledgers import purpose_of, stream_of
from spark_ledger.types import Quorums
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers, FakeWriter
from tests.unit.spark_ledger.stream.world import SCHEMA, run, small_manifests, table


class Noting(FakeLedgers):
    def __init__(self) -> None:
        super().__init__()
        self.until_named: dict[int, bool] = {}

    async def create_ledger(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        custom_metadata: Mapping[str, str] | None = None,
        until_named: bool = False,
    ) -> FakeWriter:
        made = await super().create_ledger(
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            custom_metadata=custom_metadata,
        )
        self.until_named[made.ledger_id] = until_named
        return made


def test_every_ledger_of_a_stream_is_its_own_and_goes_unless_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise what a process has begun that died would stay for ever (rule K4)."""
    small_manifests(monkeypatch)
    monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", 200)

    async def scenario() -> None:
        ledgers = Noting()
        stream = await StreamCatalog(ledgers).create(
            "s", SCHEMA, ensemble_size=5, write_quorum=4, ack_quorum=3
        )
        writer = stream.writer()
        for number in range(4):
            await writer.write(table(number))
            await stream.commit_segments(await writer.finish() * (6 if number == 3 else 1))
            await stream._committer.sealer.close()
        await writer.close()
        assert await stream.optimizer.run_all(entries_min=1)
        metadata = [each.metadata for each in ledgers.ledgers.values()]
        assert {purpose_of(each) for each in metadata} == {
            "segments",
            "segment-list",
            "manifest",
            "pack",
        }
        assert {stream_of(each) for each in metadata} == {"s"}
        assert {each.custom_metadata["stream_id"] for each in metadata} == {stream.config.stream_id}
        assert {each.quorums for each in metadata} == {Quorums(5, 4, 3)}
        assert all(ledgers.until_named.values())

    run(scenario())


def test_ledger_that_an_application_has_marked_itself_is_raw() -> None:
    """Marks of the same names say nothing without the id of a stream."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        tags = {"purpose": "segments", "stream": "s"}
        for marks, purpose, stream in (
            ({}, "raw", ""),
            (tags, "raw", ""),
            ({"stream_id": "1"}, "raw", ""),
            ({**tags, "stream_id": "1"}, "segments", "s"),
        ):
            made = await ledgers.create_ledger(custom_metadata=marks)
            metadata = await ledgers.ledger_metadata(made.ledger_id)
            assert (purpose_of(metadata), stream_of(metadata)) == (purpose, stream)

    run(scenario())
