"""Recovery's shell: what it asks of bookies, what it writes back, and how it fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from itertools import pairwise
from typing import Any

import pytest

from spark_ledger.client import found_entries, recovery
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.errors import BookieUnavailableError, LedgerError
from spark_ledger.limits.client import BUSY_PAUSE_S, BUSY_PAUSE_S_MAX
from spark_ledger.protocol.ensemble import with_ensemble
from spark_ledger.protocol.events import Event
from spark_ledger.protocol.recovery import RecoveryMachine
from spark_ledger.runs import EntryRun
from spark_ledger.tasks import cancel
from spark_ledger.transport.base import ReadChunk
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId, LedgerState
from tests.contracts.scripted_bookie import ScriptedBookie
from tests.unit.spark_ledger.client.world import World, run, run_virtually

PAYLOADS = [b"entry %d" % n * (n + 1) for n in range(23)]


async def left_open(client: LedgerClient, quorums: tuple[int, int, int]) -> LedgerWriter:
    """A ledger whose entries were appended without a pause, so that bookies know of no LAC."""
    e, wq, aq = quorums
    writer = await client.create_ledger(ensemble_size=e, write_quorum=wq, ack_quorum=aq)
    await asyncio.gather(*(writer.append_nowait(payload) for payload in PAYLOADS))
    return writer


def counted(client: LedgerClient, *, joined: bool) -> list[int]:
    """The first entries of this client's reads from now on; ``joined``: each answer is one run, as
    of a bookie that has all of its entries at hand."""
    transport, firsts = client._context.transport, list[int]()
    honest = transport.read

    async def read(*args: Any, **kwargs: Any) -> AsyncGenerator[ReadChunk, None]:
        firsts.append(args[2])
        runs: list[EntryRun] = []
        async for chunk in honest(*args, **kwargs):
            if joined and chunk.run is not None:
                runs.append(chunk.run)
                continue
            if runs:
                yield ReadChunk(BookieStatus.OK, one_run(runs), runs[0].first_entry)
            runs = []
            yield chunk
        if runs:
            yield ReadChunk(BookieStatus.OK, one_run(runs), runs[0].first_entry)

    transport.read = read  # type: ignore[method-assign]
    return firsts


def hold_adds(bookie: ScriptedBookie) -> None:
    """It stores nothing until it is told to."""
    add = bookie.add

    def held_add(*args: Any, **kwargs: Any) -> None:
        bookie.hold = True  # and fences, which reads wait for, not
        add(*args, **kwargs)
        bookie.hold = False

    bookie.add = held_add  # type: ignore[method-assign]


def one_run(runs: list[EntryRun]) -> EntryRun:
    return EntryRun(
        runs[0].ledger_id,
        runs[0].first_entry,
        [entry_id for run in runs for entry_id in run.ids()],
        [size for run in runs for size in run.sizes],
        b"".join(run.frames for run in runs),
    )


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("quorums", [(1, 1, 1), (3, 3, 2), (3, 2, 2), (5, 3, 2), (4, 2, 1)])
def test_everything_behind_the_last_add_confirmed_is_found(
    quorums: tuple[int, int, int], joined: bool
) -> None:
    async def test(world: World) -> None:
        writer = await left_open(await world.client(explicit_lac_delay_s=100.0), quorums)
        other = await world.client()
        firsts = counted(other, joined=joined)
        reader = await other.open_ledger(writer.ledger_id, recover=True)
        replicas = quorums[0] * quorums[1] if quorums[0] > quorums[1] else quorums[0]
        assert len(firsts) <= 2 * replicas, "one question brings many entries"
        assert reader.metadata.state is LedgerState.CLOSED
        assert reader.last_add_confirmed == len(PAYLOADS) - 1
        assert reader.metadata.length == sum(map(len, PAYLOADS))
        assert [e.payload async for e in reader.read(0, len(PAYLOADS) - 1)] == PAYLOADS

    run_virtually(test, bookies=5)


@pytest.mark.parametrize("quorums", [(3, 3, 2), (5, 3, 2)])
def test_entries_that_several_replicas_bring_are_taken_once(
    quorums: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each bookie puts another number of entries into an answer, so that they overlap. What is kept
    twice would count against the bound for ever."""
    taken, add = list[int](), found_entries.FoundEntries.add

    def noted(self: found_entries.FoundEntries, found: Iterable[found_entries.Found]) -> None:
        entries = list(found)
        taken.extend(entry.entry_id for entry in entries)
        add(self, entries)

    monkeypatch.setattr(found_entries.FoundEntries, "add", noted)

    async def test(world: World) -> None:
        writer = await left_open(await world.client(explicit_lac_delay_s=100.0), quorums)
        other = await world.client()
        honest = other.context.transport.read

        async def read(bookie_id: BookieId, *args: Any, **kwargs: Any) -> Any:
            count, runs = 2 + int(bookie_id[1:]), list[EntryRun]()
            async for chunk in honest(bookie_id, *args, **kwargs):
                runs += [] if chunk.run is None else [chunk.run]
                if runs and (chunk.run is None or len(runs) == count):
                    yield ReadChunk(BookieStatus.OK, one_run(runs), runs[0].first_entry)
                    await asyncio.sleep(0.001)
                    runs = []
                if chunk.run is None:
                    yield chunk

        other.context.transport.read = read  # type: ignore[method-assign]
        reader = await other.open_ledger(writer.ledger_id, recover=True)
        assert reader.metadata.length == sum(map(len, PAYLOADS))
        assert sorted(taken) == list(range(min(taken), len(PAYLOADS))) and min(taken) <= 1

    run_virtually(test, bookies=5)


@pytest.mark.parametrize("quorums", [(3, 3, 2), (5, 3, 2), (4, 2, 1)])
def test_the_length_of_a_ledger_whose_end_was_known_is_that_of_its_last_entry(
    quorums: tuple[int, int, int],
) -> None:
    e, wq, aq = quorums

    async def test(world: World) -> None:
        client = await world.client(explicit_lac_delay_s=0.01)
        writer = await client.create_ledger(ensemble_size=e, write_quorum=wq, ack_quorum=aq)
        for payload in PAYLOADS[:8]:
            await writer.append(payload)
        ends = [world.bookies[b].ledgers for b in writer.metadata.last_fragment.bookies]
        while min(ledgers[writer.ledger_id].last_add_confirmed for ledgers in ends) < 7:
            await asyncio.sleep(0.01)
        reader = await (await world.client()).open_ledger(writer.ledger_id, recover=True)
        assert reader.last_add_confirmed == 7
        assert reader.metadata.length == sum(map(len, PAYLOADS[:8]))

    run_virtually(test, bookies=5)


@pytest.mark.parametrize("quorums", [(3, 3, 2), (5, 3, 2)])
def test_what_is_found_is_written_back_to_all_of_its_bookies(quorums: tuple[int, int, int]) -> None:
    """One bookie had lost all of it: it gets each of its entries again, byte by byte."""

    async def test(world: World) -> None:
        writer = await left_open(await world.client(explicit_lac_delay_s=100.0), quorums)
        victim = world.bookies[writer.metadata.last_fragment.bookies[1]]
        held = dict(victim.ledgers[writer.ledger_id].entries)
        victim.ledgers[writer.ledger_id].entries.clear()
        await (await world.client()).open_ledger(writer.ledger_id, recover=True)
        got = victim.ledgers[writer.ledger_id].entries
        first = min(got)
        assert got == {entry_id: frame for entry_id, frame in held.items() if entry_id >= first}
        assert first <= 2, "only what was confirmed before is not looked at"

    run_virtually(test, bookies=5)


def test_recovery_requests_all_fence_with_the_access_key() -> None:
    """A question that does not fence lets the old writer reach its quorum behind the answer."""

    async def test(world: World) -> None:
        client, other = await world.client(explicit_lac_delay_s=100.0), await world.client()
        writer = await client.create_ledger(password=b"secret")
        await asyncio.gather(*(writer.append_nowait(b"x") for _ in range(5)))
        transport, asked = other._context.transport, set[tuple[str, bool, bool]]()
        honest_read, honest_end = transport.read, transport.read_last_confirmed

        async def read(*args: Any, **kwargs: Any) -> AsyncGenerator[ReadChunk, None]:
            asked.add(("read", kwargs.get("fence", False), bool(kwargs.get("access_key"))))
            async for chunk in honest_read(*args, **kwargs):
                yield chunk

        async def end(*args: Any, **kwargs: Any) -> Any:
            asked.add(("end", kwargs.get("fence", False), bool(kwargs.get("access_key"))))
            return await honest_end(*args, **kwargs)

        transport.read, transport.read_last_confirmed = read, end  # type: ignore[method-assign]
        await other.open_ledger(writer.ledger_id, recover=True, password=b"secret")
        assert asked == {("read", True, True), ("end", True, True)}

    # In real time: a password is turned into keys in a thread.
    run(test)


async def add_empty_fragment(client: LedgerClient, ledger_id: LedgerId) -> None:
    """As a writer does that changes its ensemble and dies before the next entry."""
    stored = await client._context.ledgers.read(ledger_id)
    bookies = stored.value.last_fragment.bookies
    (spare,) = {"b0", "b1", "b2", "b3"}.difference(bookies)
    fragments = with_ensemble(stored.value.fragments, EntryId(1), (BookieId(spare), *bookies[1:]))
    changed = stored.value.with_changes(fragments=fragments)
    await client._context.ledgers.compare_and_set(changed, stored.version)


def test_unreadable_length_fails_the_recovery_and_leaves_the_ledger() -> None:
    """The last entry is known to be confirmed; who closes without its length would make one up."""

    async def test(world: World) -> None:
        client = await world.client(explicit_lac_delay_s=0.01)
        writer = await client.create_ledger()
        await writer.append(b"three")
        ends = [world.bookies[b].ledgers for b in writer.metadata.last_fragment.bookies]
        while min(ledgers[writer.ledger_id].last_add_confirmed for ledgers in ends) < 0:
            await asyncio.sleep(0.01)
        other = await world.client()
        await add_empty_fragment(other, writer.ledger_id)
        transport = other._context.transport
        honest = transport.read

        async def fails(*args: Any, **kwargs: Any) -> AsyncGenerator[ReadChunk, None]:
            first = args[2]
            if first == 0:
                yield ReadChunk(BookieStatus.UNAVAILABLE, None, first, "cut")
                return
            async for chunk in honest(*args, **kwargs):
                yield chunk

        transport.read = fails  # type: ignore[method-assign]
        with pytest.raises(BookieUnavailableError):
            await other.open_ledger(writer.ledger_id, recover=True)
        stored = await other.ledger_metadata(writer.ledger_id)
        assert stored.state is LedgerState.IN_RECOVERY
        transport.read = honest  # type: ignore[method-assign]
        reader = await other.open_ledger(writer.ledger_id, recover=True)
        assert (reader.last_add_confirmed, reader.metadata.length) == (0, len(b"three"))

    run_virtually(test, bookies=4)


def test_a_bug_of_ours_ends_the_recovery_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_self: RecoveryMachine, _event: Event, _now: float) -> list[object]:
        raise AssertionError("broken on purpose")

    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        await writer.append(b"0")
        monkeypatch.setattr(RecoveryMachine, "handle", broken)
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        with pytest.raises(LedgerError, match="broken on purpose"):
            async with asyncio.timeout(5):
                await client.open_ledger(writer.ledger_id, recover=True)

    run_virtually(test)


@pytest.mark.parametrize("quorums", [(1, 1, 1), (3, 3, 2), (4, 2, 1)])
@pytest.mark.parametrize("names", [None, 0, -1])
def test_read_that_a_busy_bookie_breaks_off_goes_on_where_it_was(
    names: int | None, quorums: tuple[int, int, int]
) -> None:
    """A bookie brings some entries and says then that it is busy: what it brought is not asked for
    again, whichever entry it ``names``."""

    async def test(world: World) -> None:
        writer = await left_open(await world.client(explicit_lac_delay_s=100.0), quorums)
        other = await world.client()
        transport, asked = other._context.transport, dict[str, list[int]]()
        honest = transport.read

        async def read(bookie_id: BookieId, *args: Any, **options: Any) -> Any:
            firsts: list[int] = []
            if options.get("fence"):
                lane_of = (bookie_id, args[1] % options["stride"])
                firsts = asked.setdefault(str(lane_of), [])
                firsts.append(args[1])
            brought = 0
            async for chunk in honest(bookie_id, *args, **options):
                if brought == 2 and chunk.run is not None and len(firsts) == 1:
                    first = chunk.run.first_entry if names is None else EntryId(names)
                    yield ReadChunk(BookieStatus.TOO_MANY_REQUESTS, None, first, "busy")
                    return
                brought += 1
                yield chunk

        transport.read = read  # type: ignore[method-assign]
        reader = await other.open_ledger(writer.ledger_id, recover=True)
        assert reader.last_add_confirmed == len(PAYLOADS) - 1
        assert [e.payload async for e in reader.read(0, len(PAYLOADS) - 1)] == PAYLOADS
        for firsts in asked.values():
            assert firsts == sorted(set(firsts)), "nothing is asked for twice"

    run_virtually(test, bookies=5)


@pytest.mark.parametrize("quorums", [(3, 3, 2), (4, 3, 2)])
@pytest.mark.parametrize("ahead", ["two", "one", "far"])
def test_busy_bookie_that_names_a_later_entry_makes_no_hole(
    ahead: str, quorums: tuple[int, int, int]
) -> None:
    """It lies, and is faster than the others: what it leaves out would never be delivered."""

    async def test(world: World) -> None:
        writer = await left_open(await world.client(explicit_lac_delay_s=100.0), quorums)
        liar = writer.metadata.last_fragment.bookies[0]
        other, lies = await world.client(), 0
        honest = other.context.transport.read

        async def read(bookie_id: BookieId, *args: Any, **options: Any) -> Any:
            nonlocal lies
            first, stride = args[1], options["stride"]
            if options.get("fence") and bookie_id != liar:
                await asyncio.sleep(1.0)
            brought = 0
            async for chunk in honest(bookie_id, *args, **options):
                if options.get("fence") and bookie_id == liar and brought == 1 and lies < 4:
                    lies += 1
                    named = {"two": first + 3 * stride, "one": first + stride + 1, "far": 2**40}
                    yield ReadChunk(
                        BookieStatus.TOO_MANY_REQUESTS, None, EntryId(named[ahead]), "busy"
                    )
                    return
                brought += 1
                yield chunk

        other.context.transport.read = read  # type: ignore[method-assign]
        reader = await other.open_ledger(writer.ledger_id, recover=True)
        assert lies
        assert reader.last_add_confirmed == len(PAYLOADS) - 1
        assert [e.payload async for e in reader.read(0, len(PAYLOADS) - 1)] == PAYLOADS

    run_virtually(test, bookies=5)


def test_recovery_is_as_patient_with_who_stores_nothing_as_a_writer() -> None:
    """And not as a reader, who may set itself another time."""

    async def test(world: World) -> None:
        writer = await left_open(await world.client(explicit_lac_delay_s=100.0), (3, 3, 2))
        for name in writer.metadata.last_fragment.bookies[:2]:
            hold_adds(world.bookies[name])
        other = await world.client(add_timeout_s=0.5, read_timeout_s=100.0)
        reader = await asyncio.wait_for(other.open_ledger(writer.ledger_id, recover=True), 5.0)
        assert reader.last_add_confirmed == len(PAYLOADS) - 1

    run_virtually(test, bookies=5)


def test_recovery_whose_bookies_stay_busy_ends_with_an_error() -> None:
    """Nobody may write to the ledger then, and its caller can begin anew: it must hear of it."""

    async def test(world: World) -> None:
        writer = await left_open(await world.client(explicit_lac_delay_s=100.0), (3, 3, 2))
        other = await world.client(read_timeout_s=10.0)
        times = dict[BookieId, list[float]]()

        async def busy(*args: Any, **_options: Any) -> AsyncGenerator[ReadChunk, None]:
            times.setdefault(args[0], []).append(asyncio.get_running_loop().time())
            yield ReadChunk(BookieStatus.TOO_MANY_REQUESTS, None, args[2], "busy")

        other.context.transport.read = busy  # type: ignore[method-assign]
        with pytest.raises(LedgerError):
            await asyncio.wait_for(other.open_ledger(writer.ledger_id, recover=True), 15.0)
        assert len(times) == 3
        for asked in times.values():
            assert len(asked) >= 6
            for number, (before, after) in enumerate(pairwise(asked)):
                pause_s = min(BUSY_PAUSE_S * 2**number, BUSY_PAUSE_S_MAX)
                assert 0.5 * pause_s <= after - before <= 1.51 * pause_s, "later and later"

    run_virtually(test, bookies=5)


def test_recovery_is_as_patient_with_a_busy_bookie_after_a_long_wait_for_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait_for_room = found_entries.FoundEntries.wait_for_room

    async def wait_long(self: found_entries.FoundEntries, *lane: Any) -> None:
        await asyncio.sleep(3.0)
        await wait_for_room(self, *lane)

    monkeypatch.setattr(found_entries.FoundEntries, "wait_for_room", wait_long)

    async def test(world: World) -> None:
        writer = await left_open(await world.client(explicit_lac_delay_s=100.0), (3, 3, 2))
        other = await world.client(read_timeout_s=2.0)
        honest, refused = other.context.transport.read, set[BookieId]()

        async def read(bookie_id: BookieId, *args: Any, **options: Any) -> Any:
            if bookie_id not in refused:
                refused.add(bookie_id)
                yield ReadChunk(BookieStatus.TOO_MANY_REQUESTS, None, args[1], "busy")
                return
            async for chunk in honest(bookie_id, *args, **options):
                yield chunk

        other.context.transport.read = read  # type: ignore[method-assign]
        reader = await other.open_ledger(writer.ledger_id, recover=True)
        assert refused and reader.last_add_confirmed == len(PAYLOADS) - 1

    run_virtually(test, bookies=3)


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("quorums", [(1, 1, 1), (3, 3, 2), (5, 3, 2), (4, 2, 1)])
def test_recovery_whose_bookies_store_slowly_holds_no_more_than_its_bound(
    quorums: tuple[int, int, int], busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing tells what was confirmed, so all of the ledger is read. ``busy``: one bookie has to
    be sent again what the others have stored already."""
    monkeypatch.setattr(found_entries, "RECOVERY_BYTES_MAX", 200)
    monkeypatch.setattr(recovery, "RECOVERY_READ_BYTES_MAX", 100)
    e, wq, _ = quorums
    lanes, largest = 1 if e == wq else e, len(PAYLOADS[-1]) + 48
    bound = (200 + lanes * (100 + largest)) * wq / e + largest
    held: list[int] = []

    async def store_slowly(bookies: list[ScriptedBookie]) -> None:
        while True:
            await asyncio.sleep(0.05)
            held.append(max(bookie.append_bytes_in_flight for bookie in bookies))
            if busy and len(held) == 2:
                bookies[0].refuse_next = BookieStatus.TOO_MANY_REQUESTS, "busy"
            for bookie in bookies:
                bookie.release()

    async def test(world: World) -> None:
        writer = await left_open(await world.client(explicit_lac_delay_s=100.0), quorums)
        bookies = list(world.bookies.values())
        for bookie in bookies:
            hold_adds(bookie)
        storing = asyncio.create_task(store_slowly(bookies))
        reader = await (await world.client()).open_ledger(writer.ledger_id, recover=True)
        await cancel(storing)
        assert reader.metadata.length == sum(map(len, PAYLOADS))
        assert [e.payload async for e in reader.read(0, len(PAYLOADS) - 1)] == PAYLOADS
        assert 0 < max(held) <= bound

    run_virtually(test, bookies=5)


def test_entry_that_one_bookie_alone_says_is_confirmed_is_written_back() -> None:
    """What proves a last add confirmed is the one that an entry carries, and not its own id."""

    async def test(world: World) -> None:
        writer = await (await world.client(explicit_lac_delay_s=0.01)).create_ledger()
        await writer.append(b"0")
        await asyncio.sleep(0.1)
        liar, *others = (world.bookies[b] for b in writer.metadata.last_fragment.bookies)
        for bookie in others:
            bookie.hold = True
        unconfirmed = writer.append_nowait(b"1")
        await asyncio.sleep(0.1)
        liar.ledgers[writer.ledger_id].last_add_confirmed = 1
        for bookie in others:
            bookie._held.clear()
            bookie.hold = False
        reader = await (await world.client()).open_ledger(writer.ledger_id, recover=True)
        assert reader.last_add_confirmed == 1
        for bookie in world.bookies.values():
            assert list(bookie.ledgers[writer.ledger_id].entries) == [0, 1]
        await writer.abandon()
        with pytest.raises(LedgerError):
            await unconfirmed

    run_virtually(test)
