"""Commands that ask bookies about a cluster: one that lies makes no command ask for ever, adds no
losses to what the honest ones say, and is named."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from spark_ledger.cli import inspection, listing
from spark_ledger.cli.ends import _is_absurd
from spark_ledger.cli.inspection import LedgerPicture, inspect_ledger
from spark_ledger.cli.listing import SHORT_PAGES_MAX, HeldEntries
from spark_ledger.cli.safety import Standing, exit_status, survey
from spark_ledger.cli.show.zones import Safety
from spark_ledger.cli.verify import NEVER_GIVEN_MAX, Verified, verify
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.limits.bookie import BOOKIE_LEDGERS_PER_ANSWER
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree
from spark_ledger.transport.base import FIRST_ENTRY, LastConfirmed, ListedEntries, ReadChunk
from spark_ledger.transport.memory import MemoryTransport
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId
from tests.unit.spark_ledger.client.world import World, run_virtually

LIAR: Final = BookieId("b1")
FAR: Final = EntryId(2**62)
PATIENCE: Final = 50_000
"""Questions to the liar that a command may come to."""


class Lying(MemoryTransport):
    """``lie`` says how b1 lies."""

    def __init__(self, world: World, lie: str) -> None:
        super().__init__(world.alive)
        self.lie = lie
        self.asked = 0

    def count(self) -> None:
        self.asked += 1
        assert self.asked < PATIENCE, "it is asked for ever"

    async def read_last_confirmed(self, bookie_id: BookieId, *words: Any, **more: Any) -> Any:
        if bookie_id == LIAR and self.lie == "confirms-too-much":
            return LastConfirmed(BookieStatus.OK, FAR, FAR)
        if bookie_id == LIAR and self.lie == "was-told-too-much":
            return LastConfirmed(BookieStatus.OK, FAR, EntryId(2))
        return await super().read_last_confirmed(bookie_id, *words, **more)

    async def list_entries(
        self, bookie_id: BookieId, ledger_id: LedgerId, first: EntryId = FIRST_ENTRY, **more: Any
    ) -> ListedEntries:
        if bookie_id != LIAR:
            return await super().list_entries(bookie_id, ledger_id, first, **more)
        self.count()
        if self.lie == "lists-one-by-one":
            return ListedEntries(BookieStatus.OK, [(first, first)], EntryId(first + 1))
        if self.lie == "lists-without-end":
            return ListedEntries(
                BookieStatus.OK, [(first, EntryId(first + 9))], EntryId(first + 2000)
            )
        if self.lie == "lists-nothing-in-each":
            return ListedEntries(BookieStatus.OK, [], EntryId(first + 1))
        if self.lie == "lists-too-much":
            return ListedEntries(BookieStatus.OK, [(first, FAR)])
        return await super().list_entries(bookie_id, ledger_id, first, **more)

    async def list_ledgers(self, bookie_id: BookieId, first: LedgerId, **more: Any) -> Any:
        if bookie_id != LIAR:
            return await super().list_ledgers(bookie_id, first, **more)
        self.count()
        if self.lie == "one-ledger-in-each":
            return BookieStatus.OK, [LedgerId(first + 1)]
        if self.lie == "ledgers-without-end":
            return BookieStatus.OK, list(range(first, first + BOOKIE_LEDGERS_PER_ANSWER))
        if self.lie == "cannot-list":
            return BookieStatus.BAD_REQUEST, []
        return await super().list_ledgers(bookie_id, first, **more)

    async def describe(self, bookie_id: BookieId, **more: Any) -> Any:
        words = await super().describe(bookie_id, **more)
        return words._replace(next_ledger_id=2**63) if self.lie == "cannot-list" else words

    async def read(
        self, bookie_id: BookieId, *words: Any, **more: Any
    ) -> AsyncGenerator[ReadChunk]:
        if bookie_id == LIAR and self.lie == "confirms-too-much":
            self.count()
            while True:  # goes on with wrong chunks
                yield ReadChunk(BookieStatus.OK, None, EntryId(0))
                await asyncio.sleep(0.5)
        async for chunk in super().read(bookie_id, *words, **more):
            yield chunk


LIES_OF_ENTRIES: Final = (
    "lists-one-by-one",
    "lists-without-end",
    "lists-nothing-in-each",
    "lists-too-much",
)
LIES_OF_ENDS: Final = ("confirms-too-much", "was-told-too-much")


async def written(world: World, **options: Any) -> LedgerWriter:
    writer = await (await world.client()).create_ledger(**options)
    for number in range(3):
        await writer.append(b"%d" % number)
    await asyncio.sleep(2.0)  # all hear what was confirmed
    return writer


async def surveyed(world: World, lie: str) -> Standing:
    transport = Lying(world, lie)
    found = await survey(MemoryMetadataStore(world.tree), transport, lambda _: None)
    await transport.close()
    return found


async def verified(world: World, lie: str) -> Verified:
    transport = Lying(world, lie)
    found = await verify(MemoryMetadataStore(world.tree), transport, lambda _: None)
    await transport.close()
    return found


@pytest.mark.parametrize("lie", LIES_OF_ENDS)
@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 3, 3), (3, 2, 2)])
def test_end_that_only_a_liar_knows_is_no_loss(lie: str, quorums: tuple[int, int, int]) -> None:
    size, write, ack = quorums

    async def test(world: World) -> None:
        await written(world, ensemble_size=size, write_quorum=write, ack_quorum=ack)
        found = await surveyed(world, lie)
        assert exit_status(found) == 0 and not found.silent
        assert found.zones[Safety.WRITE_QUORUM].entries in (2, 3)
        assert sum(each.entries for each in found.zones.values()) == 3
        assert list(found.unbelieved) == [LIAR] and "which cannot be" in found.unbelieved[LIAR]

    run_virtually(test)


@pytest.mark.parametrize("has_password", [False, True])
@pytest.mark.parametrize("lie", ["confirms-too-much", "confirms-somewhat-too-much"])
def test_end_that_a_liar_names_beside_a_silent_bookie_has_to_be_proved(
    lie: str, has_password: bool
) -> None:
    """Agreement is out of reach then (rule P5)."""

    class Somewhat(Lying):
        async def read_last_confirmed(self, bookie_id: BookieId, *words: Any, **more: Any) -> Any:
            if bookie_id == LIAR and lie == "confirms-somewhat-too-much":
                return LastConfirmed(BookieStatus.OK, EntryId(1000), EntryId(1001))
            return await super().read_last_confirmed(bookie_id, *words, **more)

    async def test(world: World) -> None:
        writer = await (await world.client()).create_ledger(
            ensemble_size=3, write_quorum=3, ack_quorum=2, password=b"p" if has_password else b""
        )
        for number in range(3):
            await writer.append(b"%d" % number)
        await asyncio.sleep(2.0)
        world.kill("b2")
        transport = Somewhat(world, lie)
        found = await survey(MemoryMetadataStore(world.tree), transport, lambda _: None)
        await transport.close()
        assert found.zones[Safety.UNREADABLE].entries == 0
        assert sum(each.entries for each in found.zones.values()) == 3

    if has_password:
        from tests.unit.spark_ledger.client.world import run

        run(test)
    else:
        run_virtually(test)


def test_end_that_the_last_bookie_proves_is_confirmed_though_the_others_are_gone() -> None:
    """Else a loss would look like entries that nobody was told of."""

    async def test(world: World) -> None:
        await written(world, ensemble_size=3, write_quorum=3, ack_quorum=2)
        world.kill("b0")
        world.kill("b2")
        found = await surveyed(world, "")
        assert found.zones[Safety.BELOW_ACK_QUORUM].entries == 2, "the newest one carries entry 1"
        assert exit_status(found) == 3

    run_virtually(test)


def test_last_bookie_of_a_long_ledger_is_believed_beside_one_that_has_lost_its_copies() -> None:
    """A denial says nothing of where the ledger ends."""
    far = EntryId(70_000_000)
    honest = LastConfirmed(BookieStatus.OK, far, EntryId(far + 1))
    lost = LastConfirmed(BookieStatus.NO_SUCH_LEDGER)
    said = {BookieId("b0"): honest, BookieId("b1"): lost}
    assert not _is_absurd(BookieId("b0"), said, EntryId(-1))
    short = LastConfirmed(BookieStatus.OK, EntryId(6), EntryId(7))
    assert _is_absurd(BookieId("b0"), {**said, BookieId("b2"): short}, EntryId(-1))


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("lie", LIES_OF_ENTRIES)
def test_survey_of_a_bookie_that_lists_without_end_ends(lie: str, is_closed: bool) -> None:
    async def test(world: World) -> None:
        writer = await written(world, ensemble_size=3, write_quorum=3, ack_quorum=2)
        if is_closed:
            await writer.close()
        found = await surveyed(world, lie)
        assert found.at_risk == 0 and exit_status(found) in (0, 1)
        assert found.zones[Safety.UNCONFIRMED].entries <= 2**23
        assert (LIAR in found.silent) == (lie != "lists-without-end")

    run_virtually(test)


@pytest.mark.parametrize(("answer_s", "pages"), [(0.05, SHORT_PAGES_MAX), (0.11, 150)])
def test_short_pages_of_a_slow_disk_are_no_lie_before_there_are_many(
    answer_s: float, pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a striped ledger a bookie reads whole blocks to know which entries they have."""
    monkeypatch.setattr(listing, "SLOW_PAGES_MAX", 150)

    async def test(_world: World) -> None:
        async def ask(first: EntryId) -> ListedEntries:
            await asyncio.sleep(answer_s)
            return ListedEntries(BookieStatus.OK, [(first, first)], EntryId(first + 2))

        faults: list[str] = []
        held = HeldEntries(ask, 1_000_000, faults.append)
        while held.known_until is not None:
            assert not faults
            await held.fetch()
        assert "hardly anything" in faults[0] and len(await held.take(None)) == pages

    run_virtually(test)


@pytest.mark.parametrize("lie", LIES_OF_ENTRIES)
def test_comparison_with_a_bookie_that_lists_without_end_ends(lie: str) -> None:
    async def test(world: World) -> None:
        await (await written(world)).close()
        found = await verified(world, lie)
        assert found.is_well == (lie == "lists-without-end"), "that is behind the end of all"
        honest = [each for name, each in found.bookies.items() if name != LIAR]
        assert [(each.entries, each.missing, each.silent) for each in honest] == [(3, 0, "")] * 2
        if lie != "lists-without-end":
            assert found.bookies[LIAR].silent.startswith("it lists ")

    run_virtually(test)


@pytest.mark.parametrize("lie", ["one-ledger-in-each", "ledgers-without-end"])
def test_comparison_with_a_bookie_that_has_ledgers_without_end_ends(
    lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_ledger.cli.verify.NEVER_GIVEN_MAX", 25_000)

    async def test(world: World) -> None:
        await (await written(world)).close()
        found = await verified(world, lie)
        assert found.bookies[LIAR].silent.startswith("it lists ")
        assert not any(each.silent for name, each in found.bookies.items() if name != LIAR)

    assert NEVER_GIVEN_MAX > BOOKIE_LEDGERS_PER_ANSWER
    run_virtually(test)


def test_bookie_of_a_former_version_is_asked_for_no_id_that_was_never_given() -> None:
    async def test(world: World) -> None:
        await (await written(world)).close()
        found = await verified(world, "cannot-list")
        assert found.is_well

    run_virtually(test)


@pytest.mark.parametrize("lie", [*LIES_OF_ENTRIES, *LIES_OF_ENDS])
def test_picture_of_a_ledger_names_the_liar(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        writer = await written(world, ensemble_size=3, write_quorum=3, ack_quorum=2)

        @asynccontextmanager
        async def transport(_store: object) -> AsyncIterator[Lying]:
            lying = Lying(world, lie)
            yield lying
            await lying.close()

        picture = await drawn(world.tree, transport, writer.ledger_id, monkeypatch)
        assert picture.last_add_confirmed == 2
        honest = [each for each in picture.holdings if each.bookie_id != LIAR]
        assert [(list(each.ranges), each.silent) for each in honest] == [([(0, 2)], "")] * 2
        (liar,) = (each for each in picture.holdings if each.bookie_id == LIAR)
        assert (liar.silent != "") == (lie in LIES_OF_ENTRIES and lie != "lists-without-end")
        assert (liar.unbelieved != "") == (lie in LIES_OF_ENDS)

    run_virtually(test)


async def drawn(
    tree: MemoryTree, transport: Any, ledger_id: int, monkeypatch: pytest.MonkeyPatch
) -> LedgerPicture:
    """What ``inspect_ledger`` finds, on the loop that runs already."""

    @asynccontextmanager
    async def store(_uri: str) -> AsyncIterator[MemoryMetadataStore]:
        yield MemoryMetadataStore(tree)

    work: list[Any] = []
    monkeypatch.setattr(inspection, "connected_store", store)
    monkeypatch.setattr(inspection, "_transport", transport)
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "run", work.append)
        inspect_ledger("zk://h/l", ledger_id)
    picture: LedgerPicture = await work[0]
    return picture
