"""Metadata that are older than what a client has seen: a restored store, and no lagging server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from spark_ledger.errors import MetadataRestoredError, NotFoundError, OutcomeUnknownError
from spark_ledger.metadata import seen_ledgers
from spark_ledger.metadata.base import Operation
from spark_ledger.metadata.ledgers import LedgerStore, ledger_path
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree
from spark_ledger.types import (
    BookieId,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    LedgerState,
    Quorums,
    Versioned,
)

L = LedgerId(7)
OPEN = LedgerMetadata(
    L, Quorums(1, 1, 1), (Fragment(EntryId(0), (BookieId("a"),)),), creation_token="t"
)
MOVED = OPEN.with_changes(fragments=(Fragment(EntryId(0), (BookieId("b"),)),))
IN_RECOVERY = OPEN.with_changes(state=LedgerState.IN_RECOVERY)
CLOSED = OPEN.with_changes(state=LedgerState.CLOSED, last_entry_id=EntryId(5), length=60)
NEW = bytes(16)
SHORTER = CLOSED.with_changes(last_entry_id=EntryId(3), length=40)


class Store(MemoryMetadataStore):
    """A store whose tree can be exchanged for that of a backup. ``lags``: plain reads are answered
    from before the last change."""

    restored_text = ""
    lags: Versioned[bytes] | None = None

    @property
    def restored(self) -> str:
        return self.restored_text

    async def get(self, path: str) -> Versioned[bytes]:
        return self.lags or await super().get(path)


async def history(store: Store, *states: LedgerMetadata) -> LedgerStore:
    """Another client makes the ledger and changes it."""
    ledgers = LedgerStore(MemoryMetadataStore(store.tree))
    version = (await ledgers.create(states[0])).version
    for state in states[1:]:
        version = await ledgers.compare_and_set(state, version)
    return ledgers


def restore(store: Store, *, text: str = "") -> None:
    """Put an empty tree in the place of the one that is there."""
    store.tree = MemoryTree()
    store.restored_text = text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([OPEN, MOVED], [OPEN]),
        ([OPEN, MOVED], [OPEN, IN_RECOVERY]),
        ([OPEN, CLOSED], [OPEN]),
        ([OPEN, CLOSED], [OPEN, IN_RECOVERY, SHORTER]),
        ([OPEN, CLOSED], [OPEN, MOVED, IN_RECOVERY]),
        ([OPEN, CLOSED], [OPEN, IN_RECOVERY, CLOSED.with_changes(last_entry_id=EntryId(4))]),
        ([OPEN, CLOSED], [OPEN, IN_RECOVERY, CLOSED.with_changes(length=61)]),
        ([OPEN], [OPEN.with_changes(incarnation=NEW), CLOSED.with_changes(incarnation=NEW)]),
    ],
)
def test_ledger_that_went_back_is_refused(
    before: list[LedgerMetadata], after: list[LedgerMetadata]
) -> None:
    async def main() -> None:
        store = Store(MemoryTree())
        await history(store, *before)
        ledgers = LedgerStore(store)
        await ledgers.read(L)
        restore(store)
        await history(store, *after)
        for _ in range(2):
            with pytest.raises(MetadataRestoredError, match=r"ledger 7.*`ledger cluster restored`"):
                await ledgers.read(L)
        assert (await LedgerStore(store).read(L)).value == after[-1], "a new process may go on"

    asyncio.run(main())


def test_server_that_lags_behind_is_asked_to_catch_up() -> None:
    async def main() -> None:
        store = Store(MemoryTree())
        await history(store, OPEN)
        ledgers = LedgerStore(store)
        old = await store.get(ledger_path(L))
        version = await ledgers.compare_and_set(CLOSED, 0)
        store.lags = old
        assert await ledgers.read(L) == Versioned(CLOSED, version)

    asyncio.run(main())


def test_latest_metadata_are_not_those_of_a_server_that_lags() -> None:
    """A writer that asks whether a recovery has begun must not be told of a moment before it."""

    async def main() -> None:
        store = Store(MemoryTree())
        other = await history(store, OPEN)
        ledgers = LedgerStore(store)
        store.lags = await store.get(ledger_path(L))
        assert (await ledgers.read(L)).value == OPEN
        version = await other.compare_and_set(IN_RECOVERY, 0)
        assert (await ledgers.read(L)).value == OPEN
        assert await ledgers.read_latest(L) == Versioned(IN_RECOVERY, version)
        assert await ledgers.read(L) == Versioned(IN_RECOVERY, version), "this one has seen it"

    asyncio.run(main())


def test_latest_metadata_that_this_client_has_changed_meanwhile_are_read_again() -> None:
    async def main() -> None:
        store = Store(MemoryTree())
        await history(store, OPEN)
        ledgers = LedgerStore(store)
        old = await store.get(ledger_path(L))
        version = await ledgers.compare_and_set(MOVED, 0)
        answers = [old]

        async def get_latest(path: str) -> Versioned[bytes]:
            return answers.pop() if answers else await MemoryMetadataStore.get(store, path)

        store.get_latest = get_latest  # type: ignore[method-assign]
        assert await ledgers.read_latest(L) == Versioned(MOVED, version)
        restore(store)
        await history(store, OPEN)
        with pytest.raises(MetadataRestoredError):
            await ledgers.read_latest(L)

    asyncio.run(main())


def test_ledgers_that_go_forward_are_read() -> None:
    async def main() -> None:
        store = Store(MemoryTree())
        other = await history(store, OPEN)
        ledgers = LedgerStore(store)
        version = (await ledgers.read(L)).version
        for state in (MOVED, IN_RECOVERY, CLOSED):
            version = await other.compare_and_set(state, version)
            assert await ledgers.read(L) == Versioned(state, version)
            assert await ledgers.read(L) == Versioned(state, version)

    asyncio.run(main())


def test_writer_overwrites_no_other_metadata_of_the_same_version_after_a_restore() -> None:
    """The version that a compare-and-set names is given again in a store that went back."""

    async def main() -> None:
        store = Store(MemoryTree())
        await history(store, OPEN)
        writer = LedgerStore(store)
        await writer.read(L)
        version = await writer.compare_and_set(MOVED, 0)
        restore(store, text="it went back")
        await history(store, OPEN, IN_RECOVERY)
        with pytest.raises(MetadataRestoredError):
            await writer.compare_and_set(CLOSED, version)
        assert (await LedgerStore(store).read(L)).value == IN_RECOVERY

    asyncio.run(main())


@pytest.mark.parametrize("loses", ["session", "connection"])
@pytest.mark.parametrize("makes", [True, False])
def test_writer_that_lost_its_session_overwrites_no_other_ledger_of_the_same_version(
    makes: bool, loses: str
) -> None:
    """An ensemble that was restored has a new epoch: the numbers of its changes go on. A session
    that is in the backup goes on as well."""

    async def main() -> None:
        store = Store(MemoryTree())
        writer = LedgerStore(store)
        if makes:
            await writer.create(OPEN)
        else:
            await history(store, OPEN)
            await writer.read(L)
        restore(store)
        other = OPEN.with_changes(incarnation=NEW)
        await history(store, other)
        if loses == "session":
            store.expire()
        else:
            store.reconnect()
        await asyncio.sleep(0)
        with pytest.raises(MetadataRestoredError):
            await writer.compare_and_set(MOVED, 0)
        assert (await LedgerStore(store).read(L)).value == other

    asyncio.run(main())


def test_only_the_last_ledgers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        seen = seen_ledgers.SeenLedgers(Store(MemoryTree()))
        seen.note(Versioned(OPEN, 1))
        seen.note(Versioned(OPEN, 2))
        one = seen.size_bytes
        monkeypatch.setattr(seen_ledgers, "LEDGERS_SEEN_BYTES_MAX", 3 * one)
        for number in range(10):
            seen.note(Versioned(OPEN.with_changes(ledger_id=LedgerId(number)), 1))
            assert seen.size_bytes == min(3 * one, (number + 2) * one)
        assert len(seen._seen) == 3
        assert seen.is_older(Versioned(OPEN.with_changes(ledger_id=LedgerId(9)), 0))
        assert not seen.is_older(Versioned(OPEN.with_changes(ledger_id=LedgerId(0)), 0))

    asyncio.run(main())


def test_ledger_that_is_seen_again_is_forgotten_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is read all the time went first, and its metadata could go back unnoticed."""

    async def main() -> None:
        seen = seen_ledgers.SeenLedgers(Store(MemoryTree()))
        ledgers = [OPEN.with_changes(ledger_id=LedgerId(number)) for number in range(4)]
        seen.note(Versioned(ledgers[0], 1))
        monkeypatch.setattr(seen_ledgers, "LEDGERS_SEEN_BYTES_MAX", 3 * seen.size_bytes)
        for each in (*ledgers[1:3], ledgers[0], ledgers[3]):
            seen.note(Versioned(each, 1))
        assert [seen.is_older(Versioned(each, 0)) for each in ledgers] == [True, False, True, True]

    asyncio.run(main())


def test_what_is_remembered_is_counted_as_large_as_it_is_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        seen = seen_ledgers.SeenLedgers(Store(MemoryTree()))
        bookies = (BookieId("a"),)
        grown = OPEN.with_changes(
            fragments=tuple(Fragment(EntryId(number), bookies) for number in range(50))
        )
        sizes = []
        for version, ledger in enumerate((OPEN, grown, OPEN)):
            seen.note(Versioned(ledger, version))
            sizes.append(seen.size_bytes)
        assert sizes[0] == sizes[2] < sizes[1]
        monkeypatch.setattr(seen_ledgers, "LEDGERS_SEEN_BYTES_MAX", sizes[1])
        for number in range(3):
            seen.note(Versioned(OPEN.with_changes(ledger_id=LedgerId(number)), 1))
        assert seen.size_bytes == 4 * sizes[0], "all of them have room"
        seen.note(Versioned(grown.with_changes(ledger_id=LedgerId(8)), 1))
        assert seen.size_bytes == sizes[1], "as many go as have to"

    asyncio.run(main())


def test_size_of_what_is_remembered_grows_with_fragments_members_and_tags() -> None:
    async def main() -> None:
        sizes = []
        for members, fragments, tags in ((1, 1, 0), (3, 1, 0), (1, 4, 0), (3, 4, 0), (1, 1, 500)):
            bookies = tuple(BookieId(name) for name in "abc"[:members])
            seen = seen_ledgers.SeenLedgers(Store(MemoryTree()))
            ledger = OPEN.with_changes(
                quorums=Quorums(members, 1, 1),
                fragments=tuple(Fragment(EntryId(first), bookies) for first in range(fragments)),
                custom_metadata={"key": "v" * tags},
            )
            seen.note(Versioned(ledger, 0))
            sizes.append(seen.size_bytes)
        assert sizes == [1_273, 1_413, 2_083, 2_643, 1_773]

    asyncio.run(main())


def test_ledger_that_is_larger_than_all_that_is_remembered_is_remembered_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(seen_ledgers, "LEDGERS_SEEN_BYTES_MAX", 10)

    async def main() -> None:
        seen = seen_ledgers.SeenLedgers(Store(MemoryTree()))
        other = OPEN.with_changes(ledger_id=LedgerId(8))
        seen.note(Versioned(other, 2))
        seen.note(Versioned(OPEN, 2))
        assert seen.is_older(Versioned(OPEN, 1)) and not seen.is_older(Versioned(other, 1))

    asyncio.run(main())


@pytest.mark.parametrize("makes", [True, False])
def test_ledger_of_which_a_server_that_lags_knew_nothing_is_remembered(makes: bool) -> None:
    """Else another ledger of the same version, in a restored store, is overwritten."""

    async def main() -> None:
        store = Store(MemoryTree())
        writer, lags, loses = LedgerStore(store), True, True
        if not makes:
            await history(store, OPEN)
        get, transaction = store.get, store.transaction

        async def lagging(path: str) -> Versioned[bytes]:
            if lags:
                raise NotFoundError(path)
            return await get(path)

        async def losing(operations: Sequence[Operation]) -> None:
            nonlocal loses
            await transaction(operations)
            if loses:
                loses = False
                raise OutcomeUnknownError("its reply was lost")

        store.get = lagging  # type: ignore[method-assign]
        store.transaction = losing  # type: ignore[method-assign]
        found = await (writer.create(OPEN) if makes else writer.read_newest(L))
        assert found == Versioned(OPEN, 0)
        lags = False
        restore(store)
        other = OPEN.with_changes(incarnation=NEW)
        await history(store, other)
        store.reconnect()
        with pytest.raises(MetadataRestoredError):
            await writer.compare_and_set(MOVED, 0)
        assert (await LedgerStore(store).read(L)).value == other

    asyncio.run(main())


def test_ledger_that_is_kept_is_remembered_whatever_else_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        seen = seen_ledgers.SeenLedgers(Store(MemoryTree()))
        others = [OPEN.with_changes(ledger_id=LedgerId(number)) for number in range(8, 20)]

        def see_others() -> None:
            for other in others:
                seen.note(Versioned(other, 1))

        seen.note(Versioned(OPEN, 1))
        monkeypatch.setattr(seen_ledgers, "LEDGERS_SEEN_BYTES_MAX", 3 * seen.size_bytes)
        with seen.keep(Versioned(OPEN, 1)):
            with seen.keep(Versioned(OPEN, 1)):
                see_others()
                assert seen.is_older(Versioned(OPEN, 0))
                seen.note(Versioned(MOVED, 2))
            see_others()
            assert seen.is_older(Versioned(OPEN, 1)), "one still keeps it"
            assert len(seen._seen) == 3, "others have the room of three"
        assert seen.is_older(Versioned(OPEN, 1)), "it was seen a moment ago"
        see_others()
        assert not seen.is_older(Versioned(OPEN, 1)), "nobody keeps it any more"

    asyncio.run(main())


def test_ledger_that_was_forgotten_and_is_kept_is_remembered_as_it_was_seen() -> None:
    async def main() -> None:
        seen = seen_ledgers.SeenLedgers(Store(MemoryTree()))
        with seen.keep(Versioned(MOVED, 2)):
            assert seen.is_older(Versioned(OPEN, 1))
        seen.note(Versioned(CLOSED, 3))
        with seen.keep(Versioned(MOVED, 2)):
            assert seen.is_older(Versioned(MOVED, 2)), "it was seen later"

    asyncio.run(main())
