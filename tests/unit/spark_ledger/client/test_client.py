"""The client's handles over memory: writing, reading, tailing, recovery, bad input."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.errors import (
    BookieUnavailableError,
    ConfigurationError,
    DigestMismatchError,
    EntryTooLargeError,
    FencedError,
    LedgerClosedError,
    LedgerError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    ReadBeyondConfirmedError,
    UnauthorizedError,
)
from spark_ledger.limits.entries import ENTRY_PAYLOAD_BYTES_MAX
from spark_ledger.types import (
    BookieId,
    BookieInfo,
    BookieState,
    BookieStatus,
    LedgerMetadata,
    Versioned,
)
from tests.unit.spark_ledger.client.world import World, run, run_virtually

PAYLOADS = [b"entry %d" % i for i in range(20)]


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2), (5, 3, 2), (4, 2, 1), (1, 1, 1)])
def test_what_is_appended_is_read_back_in_order(quorums: tuple[int, int, int]) -> None:
    e, wq, aq = quorums

    async def test(world: World) -> None:
        client = await world.client()
        async with await client.create_ledger(
            ensemble_size=e, write_quorum=wq, ack_quorum=aq, custom_metadata={"app": "x"}
        ) as writer:
            futures = [writer.append_nowait(payload) for payload in PAYLOADS]
            assert await asyncio.gather(*futures) == list(range(20))
            assert writer.last_add_confirmed == 19 == writer.last_add_pushed
        reader = await client.open_ledger(writer.ledger_id)
        assert reader.is_closed
        assert reader.metadata.length == sum(map(len, PAYLOADS))
        assert reader.metadata.custom_metadata == {"app": "x"}
        entries = [entry async for entry in reader.read(0, 19)]
        assert [entry.payload for entry in entries] == PAYLOADS
        assert [entry.entry_id async for entry in reader.read(3, 8)] == [3, 4, 5, 6, 7, 8]

    run_virtually(test, bookies=5)


def test_a_closed_writer_takes_nothing_and_closes_twice() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        await writer.close()
        await writer.close()
        with pytest.raises(LedgerClosedError):
            await writer.append(b"x")
        reader = await client.open_ledger(writer.ledger_id)
        assert reader.last_add_confirmed == -1

    run_virtually(test)


def test_recovery_fences_the_writer_and_keeps_what_was_confirmed() -> None:
    async def test(world: World) -> None:
        client, other = await world.client(), await world.client()
        writer = await client.create_ledger()
        for payload in PAYLOADS:
            await writer.append(payload)
        reader = await other.open_ledger(writer.ledger_id, recover=True)
        assert reader.is_closed
        assert reader.last_add_confirmed == 19
        with pytest.raises(FencedError):
            await writer.append(b"late")
        with pytest.raises(FencedError):
            await writer.append(b"later")
        await writer.close()
        again = await other.open_ledger(writer.ledger_id, recover=True)
        assert again.last_add_confirmed == 19
        assert [e.payload async for e in again.read(0, 19)] == PAYLOADS
        assert again.metadata.length == sum(map(len, PAYLOADS))

    run_virtually(test)


@pytest.mark.parametrize("quorums", [(3, 3, 2), (5, 3, 2)])
def test_a_dead_bookie_is_replaced_by_a_spare(quorums: tuple[int, int, int]) -> None:
    e, wq, aq = quorums

    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger(ensemble_size=e, write_quorum=wq, ack_quorum=aq)
        await writer.append(b"first")
        victim = writer.metadata.fragments[0].bookies[0]
        world.kill(victim)
        for payload in PAYLOADS:
            await writer.append(payload)
        assert len(writer.metadata.fragments) == 2
        assert victim not in writer.metadata.fragments[1].bookies
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        entries = [entry.payload async for entry in reader.read(0, 20)]
        assert entries == [b"first", *PAYLOADS]

    run_virtually(test, bookies=6)


def test_without_a_spare_the_writer_goes_on_and_the_bookie_returns() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        world.kill("b0")
        for payload in PAYLOADS:
            await writer.append(payload)
        assert writer.failed_indexes
        world.revive("b0")
        for _ in range(300):
            await writer.append(b"more")
            if not writer.failed_indexes:
                break
            await asyncio.sleep(0.01)
        assert not writer.failed_indexes, "the bookie that came back serves its index again"
        world.kill("b1")
        await writer.append(b"on two of three again")
        last = writer.last_add_confirmed
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        assert len([e async for e in reader.read(0, last)]) == last + 1

    run_virtually(test)


def test_bookie_that_comes_back_read_only_does_not_serve_its_index_again() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        world.kill("b0")
        await writer.append(b"without b0")
        for state, is_used in ((BookieState.READ_ONLY, False), (BookieState.WRITABLE, True)):
            info = BookieInfo(BookieId("b0"), "memory:b0", state)
            await world._registries[BookieId("b0")].register(info)
            await client.context.directory.refresh()
            world.revive("b0")
            for _ in range(120):
                await writer.append(b"more")
                await asyncio.sleep(0.05)
            assert (not writer.failed_indexes) is is_used
        await writer.close()

    run_virtually(test)


def test_too_few_bookies_end_the_ledger_at_what_was_confirmed() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        await writer.append(b"kept")
        world.kill("b0")
        world.kill("b1")
        with pytest.raises(NotEnoughBookiesError, match="b0"):
            await writer.append(b"lost")
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        assert reader.is_closed
        assert reader.last_add_confirmed == 0

    run_virtually(test)


def test_a_reader_follows_an_open_ledger() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        await writer.append(b"0")
        reader = await client.open_ledger(writer.ledger_id)
        seen: list[bytes] = []

        async def follow() -> None:
            async for entry in reader.tail(0):
                seen.append(entry.payload)  # noqa: PERF401 - the test looks at it meanwhile

        following = asyncio.create_task(follow())
        for payload in PAYLOADS:
            await writer.append(payload)
        while len(seen) < 21:
            await asyncio.sleep(0.005)
        assert not following.done(), "the last entry of an idle writer is visible before it closes"
        await writer.close()
        await asyncio.wait_for(following, 5)
        assert seen == [b"0", *PAYLOADS]

    run_virtually(test)


def test_a_reader_learns_of_a_fragment_when_the_bookies_it_knows_deny_an_entry() -> None:
    """A bookie may tell of newer entries before the reader has heard of their fragment."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
        await writer.append(b"0")
        reader = await client.open_ledger(writer.ledger_id)
        for name in writer.metadata.last_fragment.bookies:
            world.kill(name)
            await writer.append(b"on others")
            world.revive(name)
        first, last = writer.metadata.fragments[0], writer.metadata.last_fragment
        assert not {*first.bookies} & {*last.bookies}
        reader._last_add_confirmed = writer.last_add_confirmed
        got = [entry.entry_id async for entry in reader.read(0, writer.last_add_confirmed)]
        assert got == [0, 1, 2]
        with pytest.raises(NoSuchEntryError):  # what nobody has is still denied
            [e async for e in reader.read(0, 3, unconfirmed=True)]

    run_virtually(test, bookies=5)


def test_a_tail_ends_when_idle() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        await writer.append(b"0")
        reader = await client.open_ledger(writer.ledger_id)
        got = [entry.payload async for entry in reader.tail(0, idle_timeout=0.2)]
        assert got == [b"0"]
        await writer.close()

    run_virtually(test)


def test_a_read_above_the_last_add_confirmed_asks_no_bookie() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        await writer.append(b"0")
        reader = await client.open_ledger(writer.ledger_id)
        for name in world.bookies:
            world.kill(name)
        with pytest.raises(ReadBeyondConfirmedError):
            [e async for e in reader.read(0, 5)]
        with pytest.raises(ConfigurationError):
            [e async for e in reader.read(3, 1)]

    run_virtually(test)


def test_a_password_is_needed_for_everything_and_a_wrong_one_fences_nothing() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger(password=b"secret")
        await writer.append(b"0")
        for wrong in (b"", b"guess"):
            with pytest.raises(UnauthorizedError):
                await client.open_ledger(writer.ledger_id, recover=True, password=wrong)
        await writer.append(b"1")
        reader = await client.open_ledger(writer.ledger_id, recover=True, password=b"secret")
        assert [e.payload async for e in reader.read(0, 1)] == [b"0", b"1"]
        open_to_all = await client.create_ledger()
        with pytest.raises(UnauthorizedError, match="no password"):
            await client.open_ledger(open_to_all.ledger_id, password=b"x")

    # In real time: a password is turned into keys in a thread.
    run(test)


def test_bookies_that_do_not_answer_are_named_when_there_are_too_few() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        world.kill("b1")
        await writer.append(b"two of three have it")
        with pytest.raises(
            NotEnoughBookiesError,
            match=r"needs 3 writable bookies; 3 are registered, of which 1 cannot be used now: "
            r"b1 \(did not answer\)\. Bring them back or start others, or lower ensemble_size$",
        ):
            await client.create_ledger()
        world.revive("b1")
        await client.create_ledger()

    run_virtually(test)


def test_bad_input_is_refused_with_one_sentence() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        with pytest.raises(ConfigurationError, match="ensemble_size 2, write_quorum 3"):
            await client.create_ledger(ensemble_size=2, write_quorum=3)
        with pytest.raises(NotEnoughBookiesError, match="3 are registered"):
            await client.create_ledger(ensemble_size=5)
        with pytest.raises(NoSuchLedgerError):
            await client.open_ledger(12345)
        with pytest.raises(ConfigurationError, match="not 'seven'"):
            await client.open_ledger("seven")  # type: ignore[arg-type]
        for wrong in (-1, True):
            with pytest.raises(ConfigurationError, match=f"not {wrong}"):
                await client.open_ledger(wrong)
        with pytest.raises(ConfigurationError, match="custom_metadata"):
            await client.create_ledger(custom_metadata={"a": 1})  # type: ignore[dict-item]
        writer = await client.create_ledger()
        with pytest.raises(ConfigurationError, match="not str"):
            await writer.append("text")  # type: ignore[arg-type]
        with pytest.raises(EntryTooLargeError):
            await writer.append(bytes(ENTRY_PAYLOAD_BYTES_MAX + 1))
        await writer.append(bytearray(b"fine"))  # type: ignore[arg-type]
        await writer.close()
        await client.delete_ledger(writer.ledger_id)
        await client.delete_ledger(writer.ledger_id)
        with pytest.raises(NoSuchLedgerError):
            await client.open_ledger(writer.ledger_id)

    run_virtually(test)


def test_a_damaged_replica_is_passed_over() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        async with await client.create_ledger() as writer:
            for payload in PAYLOADS:
                await writer.append(payload)
        reader = await client.open_ledger(writer.ledger_id)
        for victim in ("b0", "b1"):
            damage(world, victim, writer.ledger_id)
            assert [e.payload async for e in reader.read(0, 19)] == PAYLOADS

    run_virtually(test)


def test_a_damaged_copy_decides_nothing_while_others_are_out_of_reach() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        async with await client.create_ledger() as writer:
            await writer.append(b"x")
        reader = await client.open_ledger(writer.ledger_id)
        damage(world, "b0", writer.ledger_id)
        world.kill("b1")
        world.kill("b2")
        with pytest.raises(BookieUnavailableError, match=r"the copy of b0 is damaged$"):
            [e async for e in reader.read(0, 0)]
        world.revive("b1")
        assert [e.payload async for e in reader.read(0, 0)] == [b"x"]
        damage(world, "b1", writer.ledger_id)
        damage(world, "b2", writer.ledger_id)
        world.revive("b2")
        with pytest.raises(DigestMismatchError, match="no intact copy"):
            [e async for e in reader.read(0, 0)]

    run_virtually(test)


def damage(world: World, name: str, ledger_id: int) -> None:
    """Flip the last byte of every entry that one bookie serves of a ledger."""
    bookie = world.bookies[name]  # type: ignore[index]
    honest = bookie.read

    def read(*args: object, **kwargs: object) -> object:
        outcome = honest(*args, **kwargs)  # type: ignore[arg-type]
        runs = []
        for found in outcome.runs:
            frames = bytearray(found.frames)
            frames[-1] ^= 1
            runs.append(
                type(found)(
                    found.ledger_id, found.first_entry, found.entry_ids, found.sizes, bytes(frames)
                )
            )
        return outcome._replace(runs=runs) if outcome.status is BookieStatus.OK else outcome

    bookie.read = read  # type: ignore[method-assign, assignment]


def test_recovery_with_older_metadata_reads_the_length_from_the_right_fragment() -> None:
    """It asked the fragment that was last before, whose bookies denied the entry (seed 44095)."""

    async def test(world: World) -> None:
        client = await world.client(explicit_lac_delay_s=0.01)
        writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        older = await client._context.ledgers.read(writer.ledger_id)
        (first,) = writer.metadata.last_fragment.bookies
        await writer.append(b"0")
        world.kill(first)
        await writer.append(b"elsewhere")
        world.revive(first)
        (last,) = writer.metadata.last_fragment.bookies
        while world.bookies[last].ledgers[writer.ledger_id].last_add_confirmed < 1:
            await asyncio.sleep(0.01)

        other = await world.client()
        ledgers = other._context.ledgers
        read = ledgers.read_latest

        async def stale_once(_ledger_id: int) -> Versioned[LedgerMetadata]:
            ledgers.read_latest = read  # type: ignore[method-assign]
            return older

        ledgers.read_latest = stale_once  # type: ignore[method-assign, assignment]
        reader = await other.open_ledger(writer.ledger_id, recover=True)
        assert reader.last_add_confirmed == 1
        assert reader.metadata.length == len(b"0elsewhere")

    run_virtually(test)


def test_competing_recoveries_agree() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        futures = [writer.append_nowait(payload) for payload in PAYLOADS]
        others = [await world.client() for _ in range(4)]
        readers = await asyncio.gather(
            *(other.open_ledger(writer.ledger_id, recover=True) for other in others)
        )
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        confirmed = [o for o in outcomes if isinstance(o, int)]
        ends = {reader.last_add_confirmed for reader in readers}
        assert len(ends) == 1
        assert max(confirmed, default=-1) <= ends.pop()

    run_virtually(test)


def test_a_deleted_ledger_tells_its_writer_and_its_readers() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        await writer.append(b"0")
        reader = await client.open_ledger(writer.ledger_id)
        await client.delete_ledger(writer.ledger_id)
        with pytest.raises(NoSuchLedgerError, match=str(writer.ledger_id)):
            await client.open_ledger(writer.ledger_id, recover=True)
        with pytest.raises(NoSuchLedgerError):
            await reader.refresh()
        with pytest.raises(NoSuchLedgerError):
            [e async for e in reader.tail(1, idle_timeout=5)]
        with pytest.raises(NoSuchLedgerError):
            await writer.close()

    run_virtually(test)


def test_an_ensemble_change_of_a_deleted_ledger_fails_its_adds() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        await writer.append(b"0")
        await client.delete_ledger(writer.ledger_id)
        world.kill(writer.metadata.last_fragment.bookies[0])
        with pytest.raises(LedgerError) as raised:
            for _ in range(100):
                await writer.append(b"nobody will find it")
        assert raised.value.outcome_unknown or isinstance(raised.value, NoSuchLedgerError)

    run_virtually(test, bookies=4)
