"""What a comparison of copies counts, and what it passes over; beside what changes meanwhile."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from spark_ledger.cli.verify import LEDGERS_AT_ONCE, Verified, verify
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.metadata.ledgers import LedgerStore, ledger_path
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.runs import EntryRun
from spark_ledger.transport.base import ReadChunk
from spark_ledger.transport.memory import MemoryTransport
from spark_ledger.types import BookieId, BookieStatus, EntryId, Fragment, LedgerId
from spark_ledger.wire.codec import decode_read_response, encode_read_response
from tests.unit.spark_ledger.client.world import World, run_virtually

B0, B1, B2 = BookieId("b0"), BookieId("b1"), BookieId("b2")


class Joined(MemoryTransport):
    """Sends all entries of a reply as one run; ``unread``: one that a bookie cannot read."""

    unread: tuple[BookieId, int] = (BookieId(""), -1)

    async def read(  # type: ignore[override]
        self, bookie_id: BookieId, ledger_id: LedgerId, first: EntryId, last: EntryId, **named: Any
    ) -> AsyncGenerator[ReadChunk, None]:
        bad = self.unread[1] if self.unread[0] == bookie_id else -1
        if first == bad:
            yield ReadChunk(BookieStatus.IO_ERROR, None, EntryId(bad), "the disk is broken")
            return
        end = EntryId(bad - 1) if first < bad <= last else last
        read = super().read(bookie_id, ledger_id, first, end, **named)
        runs = [chunk.run async for chunk in read if chunk.run is not None]
        run = decode_read_response(encode_read_response(runs))[1]
        assert run is not None
        yield ReadChunk(BookieStatus.OK, run, run.first_entry)


class Leaves(MemoryTransport):
    """One bookie says what it holds, sends so many entries, and then answers no more reads."""

    def __init__(self, alive: Any, status: BookieStatus, sent: int) -> None:
        super().__init__(alive)
        self.status, self.sent = status, sent
        self.read_of: set[LedgerId] = set()

    async def read(  # type: ignore[override]
        self, bookie_id: BookieId, ledger_id: LedgerId, first: EntryId, last: EntryId, **named: Any
    ) -> AsyncGenerator[ReadChunk, None]:
        if bookie_id != B1:
            async for chunk in super().read(bookie_id, ledger_id, first, last, **named):
                yield chunk
            return
        self.read_of.add(ledger_id)
        sent, self.sent = min(self.sent, last + 1 - first), 0
        if sent:
            end = EntryId(first + sent - 1)
            async for chunk in super().read(bookie_id, ledger_id, first, end, **named):
                yield chunk
        yield ReadChunk(self.status, None, EntryId(first + sent), "gone")


class Lies(MemoryTransport):
    """One bookie sends this run, or nothing, whatever it is asked for."""

    run: EntryRun | None

    async def read(
        self, bookie_id: BookieId, *words: Any, **named: Any
    ) -> AsyncGenerator[ReadChunk, None]:
        if bookie_id == B1:
            if self.run is not None:
                yield ReadChunk(BookieStatus.OK, self.run, self.run.first_entry)
            return
        async for chunk in super().read(bookie_id, *words, **named):
            yield chunk


async def found(world: World, transport: MemoryTransport | None = None) -> Verified:
    transport = transport or MemoryTransport(world.alive)
    verified = await verify(MemoryMetadataStore(world.tree), transport, lambda _: None)
    await transport.close()
    return verified


async def closed(world: World, *payloads: bytes, **options: Any) -> LedgerWriter:
    writer = await (await world.client()).create_ledger(**options)
    for payload in payloads:
        await writer.append(payload)
    await writer.close()
    return writer


async def renamed(world: World, writer: LedgerWriter, *bookies: str) -> None:
    """Others are named for the only fragment of a ledger."""
    ledgers = LedgerStore(MemoryMetadataStore(world.tree))
    before = await ledgers.read(LedgerId(writer.ledger_id))
    fragments = (Fragment(EntryId(0), tuple(map(BookieId, bookies))),)
    await ledgers.compare_and_set(before.value.with_changes(fragments=fragments), before.version)


def damage(world: World, writer: LedgerWriter, bookie: BookieId, entry_id: int) -> None:
    entries = world.bookies[bookie].ledgers[LedgerId(writer.ledger_id)].entries
    entries[entry_id] = entries[entry_id][:-1] + b"?"


def test_ledger_that_changes_while_it_is_compared_is_left_out() -> None:
    """A copy that was moved meanwhile is not a copy that is missing."""

    async def test(world: World) -> None:
        writer = await closed(world, b"a", b"bc")
        store, path = MemoryMetadataStore(world.tree), ledger_path(LedgerId(writer.ledger_id))

        class Moves(MemoryTransport):
            async def list_entries(self, bookie_id: BookieId, *words: Any, **more: Any) -> Any:
                if bookie_id == B2:
                    node = await store.get(path)
                    await store.put(path, node.value, node.version)
                    world.bookies[B2].ledgers[LedgerId(writer.ledger_id)].entries.clear()
                return await super().list_entries(bookie_id, *words, **more)

        verified = await found(world, Moves(world.alive))
        assert (verified.changed, verified.closed, verified.faults) == (1, 0, [])
        assert [each.missing for each in verified.bookies.values()] == [0, 0, 0]

    run_virtually(test)


def test_bookie_that_is_none_of_the_cluster_and_is_named_is_no_good_news() -> None:
    async def test(world: World) -> None:
        writer = await closed(world, b"a", b"bc")
        await renamed(world, writer, "b0", "b1", "stranger")
        verified = await found(world)
        assert not verified.is_well
        assert verified.bookies[BookieId("stranger")].silent == "it is not in this cluster"
        assert (verified.bookies[B2].beyond, verified.bookies[B2].user_bytes) == (2, 0)

    run_virtually(test)


def test_striped_ledger_has_as_many_copies_as_its_write_quorum() -> None:
    """What a bookie holds that is none of the entry's is not compared, and no part of the sum."""

    async def test(world: World) -> None:
        writer = await closed(
            world, b"a", b"bc", b"def", ensemble_size=3, write_quorum=2, ack_quorum=2
        )
        ledger_id, bookies = LedgerId(writer.ledger_id), writer.metadata.last_fragment.bookies
        assert (await found(world)).is_well
        others = world.bookies[bookies[2]].ledgers[ledger_id].entries
        others[0] = world.bookies[bookies[0]].ledgers[ledger_id].entries[0]
        verified = await found(world)
        assert verified.is_well
        assert verified.named_bytes == 12
        assert sum(each.user_bytes for each in verified.bookies.values()) == 12
        assert verified.bookies[bookies[2]].beyond == 1

    run_virtually(test)


def test_faults_are_told_up_to_a_number_and_counted_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_ledger.cli.verify.FAULTS_TOLD_MAX", 3)

    async def test(world: World) -> None:
        for _ledger in range(3):
            writer = await closed(world, b"a", b"bc", b"def")
            for entry_id in (0, 2):
                damage(world, writer, B1, entry_id)
        verified = await found(world)
        assert len(verified.faults) == 3
        assert verified.bookies[B1].damaged == 6

    run_virtually(test)


@pytest.mark.parametrize("bad", [0, 1, 2, 3])
@pytest.mark.parametrize("how", ["damaged", "unread"])
def test_entries_behind_a_bad_one_are_compared_too(how: str, bad: int) -> None:
    """Also where they come in one reply with it."""

    async def test(world: World) -> None:
        payloads = [b"a", b"bc", b"def", b"ghij"]
        writer = await closed(world, *payloads)
        transport = Joined(world.alive)
        if how == "damaged":
            damage(world, writer, B1, bad)
        else:
            transport.unread = (B1, bad)
        verified = await found(world, transport)
        assert [each.damaged for each in verified.bookies.values()] == [0, 1, 0]
        assert [each.user_bytes for each in verified.bookies.values()] == [
            10,
            10 - len(payloads[bad]),
            10,
        ]
        (fault,) = verified.faults
        assert f"entry {bad} on b1" in fault

    run_virtually(test)


@pytest.mark.parametrize(
    ("lie", "damaged", "user_bytes"),
    [("nothing", 2, 0), ("empty", 2, 0), ("malformed", 2, 0), ("later", 1, 2)],
)
def test_bookie_that_sends_other_entries_than_it_is_asked_for_is_told(
    lie: str, damaged: int, user_bytes: int
) -> None:
    """Passed over, they would count as compared; or end the comparison of all."""

    async def test(world: World) -> None:
        writer = await closed(world, b"a", b"bc")
        ledger_id = LedgerId(writer.ledger_id)
        entries = world.bookies[B1].ledgers[ledger_id].entries
        sizes = [len(entries[0]), len(entries[1])]
        transport = Lies(world.alive)
        transport.run = {
            "nothing": None,
            "empty": EntryRun(ledger_id, EntryId(0), None, [], b""),
            "malformed": EntryRun(ledger_id, EntryId(0), [0], sizes, entries[0] + entries[1]),
            "later": EntryRun(ledger_id, EntryId(1), None, sizes[1:], entries[1]),
        }[lie]
        verified = await found(world, transport)
        assert not verified.is_well
        assert [each.damaged for each in verified.bookies.values()] == [0, damaged, 0]
        assert verified.bookies[B1].user_bytes == user_bytes
        assert len(verified.faults) == damaged
        for entry_id, fault in enumerate(verified.faults):
            assert f"entry {entry_id} on b1" in fault

    run_virtually(test)


@pytest.mark.parametrize("sent", [0, 2])
@pytest.mark.parametrize("name", ["UNAVAILABLE", "TIMEOUT", "TOO_MANY_REQUESTS", "WRONG_BOOKIE"])
def test_bookie_that_goes_away_during_a_read_is_silent_and_its_copies_are_not_damaged(
    name: str, sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that hangs would be waited for as long for each entry, and one that was restarted would
    count as one that lost all."""
    monkeypatch.setattr("spark_ledger.cli.verify.BUSY_ATTEMPTS_MAX", 2)
    monkeypatch.setattr("spark_ledger.cli.verify.ENTRIES_AT_ONCE", 3)

    async def test(world: World) -> None:
        for _ledger in range(LEDGERS_AT_ONCE + 1):
            await closed(world, b"a", b"bc", b"def", b"ghij")
        transport = Leaves(world.alive, BookieStatus[name], sent)
        verified = await found(world, transport)
        gone = verified.bookies[B1]
        assert name.lower() in gone.silent and not verified.is_well
        assert (gone.damaged, gone.missing, gone.entries, gone.user_bytes) == (0, 0, 0, 0)
        assert verified.faults == []
        assert verified.bookies[B0].user_bytes == verified.bookies[B2].user_bytes == 50
        assert len(transport.read_of) <= LEDGERS_AT_ONCE, "those that were compared meanwhile"
        if not sent and name != "TOO_MANY_REQUESTS":  # which all wait for side by side
            assert len(transport.read_of) == 1, "the others had not asked yet"

    run_virtually(test)


def test_ledger_that_a_bookie_has_under_another_key_is_damaged_there() -> None:
    async def test(world: World) -> None:
        await closed(world, b"a", b"bc")
        verified = await found(world, Leaves(world.alive, BookieStatus.UNAUTHORIZED, 1))
        assert (verified.bookies[B1].silent, verified.bookies[B1].damaged) == ("", 1)

    run_virtually(test)


def test_bookie_that_is_busy_now_and_then_is_asked_to_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half a minute is what it has each time, not for a ledger of an hour."""
    monkeypatch.setattr("spark_ledger.cli.verify.BUSY_ATTEMPTS_MAX", 2)

    class Busy(MemoryTransport):
        tries = 0

        async def read(  # type: ignore[override]
            self, bookie_id: BookieId, ledger: LedgerId, first: EntryId, last: EntryId, **named: Any
        ) -> AsyncGenerator[ReadChunk, None]:
            self.tries += 1
            if self.tries % 3:
                yield ReadChunk(BookieStatus.TOO_MANY_REQUESTS, None, first)
                return
            async for chunk in super().read(bookie_id, ledger, first, first, **named):
                yield chunk

    async def test(world: World) -> None:
        await closed(world, b"a", b"bc", b"def", b"ghij")
        assert (await found(world, Busy(world.alive))).is_well

    run_virtually(test)


def test_entries_behind_the_end_are_counted_on_every_page_of_a_bookie() -> None:
    async def test(world: World) -> None:
        writer = await closed(world, b"a", b"bc")
        entries = world.bookies[B0].ledgers[LedgerId(writer.ledger_id)].entries
        assert world.bookies[B0].ranges_per_page == 2
        for number in (3, 5, 7, 9, 10):
            entries[number] = entries[0]
        assert (await found(world)).bookies[B0].beyond == 5

    run_virtually(test)


def test_ledger_that_was_made_since_the_metadata_were_listed_is_not_left_over() -> None:
    async def test(world: World) -> None:
        writer = await closed(world, b"a")
        store, path = MemoryMetadataStore(world.tree), ledger_path(LedgerId(writer.ledger_id))
        node = await store.get(path)
        await store.delete(path)

        class Late(MemoryTransport):
            async def list_entries(self, *words: Any, **more: Any) -> Any:
                if not made:
                    made.append(path)
                    await store.create(path, node.value)
                return await super().list_entries(*words, **more)

        made: list[str] = []
        verified = await found(world, Late(world.alive))
        assert made and verified.is_well
        assert [each.left_ledgers for each in verified.bookies.values()] == [0, 0, 0]

    run_virtually(test)
