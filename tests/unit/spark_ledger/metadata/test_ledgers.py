"""LedgerStore over the memory store: ids, creation with lost replies, compare-and-set, listing."""

from __future__ import annotations

import asyncio
import random

import pytest

from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    CorruptionError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NotFoundError,
    OutcomeUnknownError,
)
from spark_ledger.limits.entries import LEDGER_METADATA_NEW_BYTES_MAX
from spark_ledger.limits.metadata import LEDGER_ID_BLOCK
from spark_ledger.metadata.ledgers import LedgerStore, ledger_path
from spark_ledger.metadata.memory import Fault, Interpose, MemoryMetadataStore, MemoryTree, Outcome
from spark_ledger.types import (
    BookieId,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    Quorums,
    Versioned,
)


def ledger(ledger_id: int, token: str = "") -> LedgerMetadata:
    return LedgerMetadata(
        LedgerId(ledger_id),
        Quorums(1, 1, 1),
        (Fragment(EntryId(0), (BookieId("a"),)),),
        creation_token=token,
    )


def script(operation: str, outcomes: list[Outcome]) -> Interpose:
    """The given outcomes for the first calls of one operation, then normal ones."""
    left = list(outcomes)

    def interpose(name: str, _path: str) -> Fault:
        return Fault(left.pop(0) if name == operation and left else Outcome.NORMAL)

    return interpose


def test_paths() -> None:
    assert ledger_path(LedgerId(1)) == "ledgers/00/0000/L0001"
    assert ledger_path(LedgerId(123_456_789)) == "ledgers/01/2345/L6789"
    assert ledger_path(LedgerId(123_456_789_012)) == "ledgers/1234/5678/L9012"


def test_ids_are_distinct_over_clients_and_cost_one_round_trip_per_block() -> None:
    async def main() -> None:
        tree = MemoryTree()
        writes: list[str] = []

        def count(name: str, _path: str) -> Fault:
            writes.append(name)
            return Fault()

        stores = [LedgerStore(tree.open_session(interpose=count)) for _ in range(4)]
        ids = await asyncio.gather(
            *(store.new_ledger_id() for store in stores for _ in range(LEDGER_ID_BLOCK))
        )
        assert len(set(ids)) == len(ids) == 4 * LEDGER_ID_BLOCK
        assert min(ids) == 1
        # Four clients race for four blocks: each block costs at most one try per client.
        assert len(writes) <= 2 * 4 * 4

    asyncio.run(main())


@pytest.mark.parametrize("outcome", [Outcome.LOST_REPLY, Outcome.LOST_REQUEST])
def test_new_ledger_id_after_lost_reply_gives_no_id_twice(outcome: Outcome) -> None:
    async def main() -> None:
        tree = MemoryTree()
        first = LedgerStore(tree.open_session(interpose=script("create", [outcome])))
        second = LedgerStore(tree.open_session(interpose=script("put", [outcome])))
        ids = [await first.new_ledger_id() for _ in range(LEDGER_ID_BLOCK + 1)]
        ids += [await second.new_ledger_id() for _ in range(LEDGER_ID_BLOCK + 1)]
        ids += [await first.new_ledger_id() for _ in range(LEDGER_ID_BLOCK + 1)]
        assert len(set(ids)) == len(ids)

    asyncio.run(main())


def test_create_read_compare_and_set_delete() -> None:
    async def main() -> None:
        tree = MemoryTree()
        store, other = LedgerStore(tree.open_session()), LedgerStore(tree.open_session())
        created = await store.create(ledger(7))
        assert created.value.creation_token
        named = await store.create(ledger(2_000_000, token="mine"))
        assert named.value.creation_token == "mine"
        assert await other.read(LedgerId(7)) == created
        changed = created.value.with_changes(length=5)
        assert await other.compare_and_set(changed, 0) == 1
        with pytest.raises(ConflictError, match="ledger 7"):
            await store.compare_and_set(changed, 0)
        assert (await store.read(LedgerId(7))).value == changed
        await store.delete(LedgerId(7))
        await store.delete(LedgerId(7))
        for call in (
            lambda: store.read(LedgerId(7)),
            lambda: store.compare_and_set(changed, 1),
        ):
            with pytest.raises(NoSuchLedgerError, match="ledger 7"):
                await call()

    asyncio.run(main())


@pytest.mark.parametrize(
    "outcomes",
    [
        [Outcome.LOST_REPLY],
        [Outcome.LOST_REQUEST],
        [Outcome.LOST_REQUEST, Outcome.LOST_REPLY],
    ],
)
@pytest.mark.parametrize("token", ["", "mine"])
def test_create_after_lost_reply_is_decided_by_the_token(
    outcomes: list[Outcome], token: str
) -> None:
    async def main() -> None:
        tree = MemoryTree()
        await LedgerStore(tree.open_session()).create(ledger(8))  # its page is there
        store = LedgerStore(tree.open_session(interpose=script("transaction", outcomes)))
        created = await store.create(ledger(7, token))
        assert created == await store.read(LedgerId(7))
        assert created.value.creation_token == token or not token
        assert created.version == 0

    asyncio.run(main())


def test_create_after_lost_reply_is_decided_though_the_server_lags() -> None:
    """It does not have the node yet that the transaction has made."""

    class Lagging(MemoryMetadataStore):
        async def get(self, path: str) -> Versioned[bytes]:
            raise NotFoundError(path)

    async def main() -> None:
        tree = MemoryTree()
        await LedgerStore(tree.open_session()).create(ledger(8))  # its page is there
        lost = script("transaction", [Outcome.LOST_REPLY])
        created = await LedgerStore(Lagging(tree, interpose=lost)).create(ledger(7, "mine"))
        assert created == await LedgerStore(tree.open_session()).read(LedgerId(7))
        lagging = Lagging(tree, interpose=script("transaction", [Outcome.LOST_REQUEST]))
        with pytest.raises(ConflictError, match="ledger 7 exists"):
            await LedgerStore(lagging).create(ledger(7, "another"))

    asyncio.run(main())


def test_create_of_an_id_in_use_is_a_conflict() -> None:
    async def main() -> None:
        tree = MemoryTree()
        await LedgerStore(tree.open_session()).create(ledger(7, "theirs"))
        mine = LedgerStore(
            tree.open_session(interpose=script("transaction", [Outcome.LOST_REQUEST]))
        )
        with pytest.raises(ConflictError, match="ledger 7 exists"):
            await mine.create(ledger(7, "mine"))

    asyncio.run(main())


def test_unknown_outcomes_are_reported_with_the_ledger() -> None:
    async def main() -> None:
        tree = MemoryTree()
        await LedgerStore(tree.open_session()).create(ledger(7))
        always = tree.open_session(interpose=lambda _n, _p: Fault(Outcome.LOST_REQUEST))
        store = LedgerStore(always)
        with pytest.raises(OutcomeUnknownError, match="ledger 8"):
            await store.create(ledger(8))
        with pytest.raises(OutcomeUnknownError, match="ledger 7"):
            await store.compare_and_set(ledger(7), 0)
        with pytest.raises(OutcomeUnknownError, match="L0007"):
            await store.delete(LedgerId(7))

    asyncio.run(main())


def test_list_is_sorted_and_complete() -> None:
    async def main() -> None:
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
        chosen = random.Random(seed)
        ids = {0, 1, 9_999, 10_000, 99_999_999, 100_000_000, 10**10, 123_456_789_012}
        ids |= {chosen.randrange(10**11) for _ in range(50)}
        store = LedgerStore(MemoryTree().open_session())
        assert await store.list() == []
        for ledger_id in ids:
            await store.create(ledger(ledger_id))
        assert await store.list() == sorted(ids)
        await store.delete(LedgerId(9_999))
        assert await store.list() == sorted(ids - {9_999})

    asyncio.run(main())


def test_list_with_an_unreadable_part_raises() -> None:
    async def main() -> None:
        tree = MemoryTree()
        await LedgerStore(tree.open_session()).create(ledger(7))
        normal = [Outcome.NORMAL] * 2
        broken = tree.open_session(interpose=script("children", [*normal, Outcome.UNAVAILABLE]))
        with pytest.raises(MetadataUnavailableError):
            await LedgerStore(broken).list()

    asyncio.run(main())


def test_damage_is_reported_with_the_path() -> None:
    async def main() -> None:
        tree = MemoryTree()
        store = LedgerStore(tree.open_session())
        await store.create(ledger(7))
        await tree.open_session().put("ledgers/00/0000/L0007", b"{", 0)
        with pytest.raises(CorruptionError, match="ledgers/00/0000/L0007"):
            await store.read(LedgerId(7))

    asyncio.run(main())


def test_watch_reports_a_change() -> None:
    async def main() -> None:
        tree = MemoryTree()
        store, other = LedgerStore(tree.open_session()), LedgerStore(tree.open_session())
        created = await store.create(ledger(7))
        changed = asyncio.Event()
        store.watch(LedgerId(7), changed.set)
        await other.compare_and_set(created.value.with_changes(length=1), 0)
        async with asyncio.timeout(5):
            await changed.wait()

    asyncio.run(main())


def test_new_ledger_id_after_three_lost_replies_is_unknown() -> None:
    async def main() -> None:
        for operation, losses in (("create", 2), ("put", 2), ("create", 3), ("put", 3)):
            tree = MemoryTree()
            if operation == "put":
                await LedgerStore(tree.open_session()).new_ledger_id()
            outcomes = [Outcome.LOST_REQUEST] * losses
            store = LedgerStore(tree.open_session(interpose=script(operation, outcomes)))
            if losses == 2:
                assert await store.new_ledger_id() > 0
            else:
                with pytest.raises(OutcomeUnknownError):
                    await store.new_ledger_id()

    asyncio.run(main())


def test_compare_and_set_after_lost_reply_names_the_ledger() -> None:
    async def main() -> None:
        tree = MemoryTree()
        created = await LedgerStore(tree.open_session()).create(ledger(7))
        store = LedgerStore(tree.open_session(interpose=script("put", [Outcome.LOST_REPLY])))
        with pytest.raises(OutcomeUnknownError, match="ledger 7: its metadata may or may not"):
            await store.compare_and_set(created.value.with_changes(length=5), 0)

    asyncio.run(main())


def test_list_spans_many_groups_and_skips_other_nodes() -> None:
    async def main() -> None:
        session = MemoryTree().open_session()
        store = LedgerStore(session)
        ids = [LedgerId(10_000 * n + n % 3) for n in range(130)]
        for ledger_id in reversed(ids):
            await store.create(ledger(ledger_id))
        await session.create("ledgers/00/0000/other", b"")
        await session.create("ledgers/00/0000/L00012", b"")
        assert await store.list() == ids

    asyncio.run(main())


def test_delete_after_lost_replies_is_repeated() -> None:
    async def main() -> None:
        for outcome in (Outcome.LOST_REQUEST, Outcome.LOST_REPLY):
            for losses in (2, 3):
                tree = MemoryTree()
                await LedgerStore(tree.open_session()).create(ledger(7))
                store = LedgerStore(
                    tree.open_session(interpose=script("delete", [outcome] * losses))
                )
                if losses == 2 or outcome is Outcome.LOST_REPLY:  # that is then found to be gone
                    await store.delete(LedgerId(7))
                    assert await store.list() == []
                else:
                    with pytest.raises(OutcomeUnknownError):
                        await store.delete(LedgerId(7))

    asyncio.run(main())


@pytest.mark.parametrize("lost", [Outcome.LOST_REQUEST, Outcome.LOST_REPLY])
def test_delete_that_meets_an_outage_behind_a_lost_reply_may_have_happened(lost: Outcome) -> None:
    """And one that meets it at once has not."""

    async def main() -> None:
        for outcomes in ([Outcome.UNAVAILABLE], [lost, Outcome.UNAVAILABLE]):
            tree = MemoryTree()
            await LedgerStore(tree.open_session()).create(ledger(7))
            store = LedgerStore(tree.open_session(interpose=script("delete", outcomes)))
            wanted = MetadataUnavailableError if len(outcomes) == 1 else OutcomeUnknownError
            with pytest.raises(wanted) as caught:
                await store.delete(LedgerId(7))
            assert type(caught.value) is wanted

    asyncio.run(main())


def test_ledger_that_would_begin_full_is_refused() -> None:
    """Its first ensemble change would be its last."""

    async def main() -> None:
        store = LedgerStore(MemoryTree().open_session())
        half = {"k": "v" * (LEDGER_METADATA_NEW_BYTES_MAX // 2)}
        await store.create(ledger(1).with_changes(custom_metadata=half))
        with pytest.raises(ConfigurationError, match="use less custom metadata"):
            await store.create(ledger(2).with_changes(custom_metadata={**half, "l": half["k"]}))
        with pytest.raises(NoSuchLedgerError):
            await store.read(LedgerId(2))

    asyncio.run(main())
