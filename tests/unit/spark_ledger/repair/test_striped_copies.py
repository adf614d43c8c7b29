"""A bookie gets the copies of a striped ledger in the order of its entries, all lanes together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_ledger.bookie_api import EntryPage
from spark_ledger.errors import BookieUnavailableError, NoSuchEntryError
from spark_ledger.metadata.ledgers import LedgerStore
from spark_ledger.repair import merging
from spark_ledger.repair.copying import Copier, TargetFailedError
from spark_ledger.repair.ledger import _access
from spark_ledger.repair.nodes import mark
from spark_ledger.repair.plan import LaneCopy, final_fragments, lane_copies, missing
from spark_ledger.repair.throttle import Throttles
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair.test_copying import OK, Copying, OpenCalls, Target
from tests.unit.spark_ledger.repair.test_worker import filled, names
from tests.unit.spark_ledger.repair.world import crew, give_cookies, lose

COUNT = 60


class Striped(Copying):
    """A closed ledger over five bookies, each entry on three of them, that has lost the first."""

    async def prepare(self) -> Striped:
        self.client = await self.world.client()
        writer = await filled(self.client, COUNT, ensemble_size=5, write_quorum=3, ack_quorum=2)
        await writer.close()
        ledger = (await LedgerStore(self.client.store).read(writer.ledger_id)).value
        (fragment,) = final_fragments(ledger)
        self.lost, *self.others = fragment.bookies
        self.target, *self.strangers = sorted(set(self.world.bookies) - set(fragment.bookies))
        self.ledger_id = writer.ledger_id
        self.lanes = lane_copies(ledger, fragment, 0, lost={self.lost})
        self.wanted = [e for e in range(COUNT) if e % 5 in {lane.first % 5 for lane in self.lanes}]
        self.copier = Copier(
            self.client.context,
            self.ledger_id,
            _access(ledger, b""),
            Throttles(1e12, 1e12),
            self.counts,
        )
        return self

    async def send(self, target: Target, lanes: list[LaneCopy] | None = None) -> None:
        transport = self.client.context.transport
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transport, "open_appender", target.opened)
            await self.copier.copy(self.lanes if lanes is None else lanes, self.target)


def sent(target: Target) -> list[int]:
    return [e for run in target.sent for e in run.ids()]


@pytest.mark.parametrize("at_once", [1, 200, 10**6])
@pytest.mark.parametrize("knows_password", [True, False])
def test_each_run_lies_behind_all_that_the_target_has(
    at_once: int, *, knows_password: bool
) -> None:
    """It has one row of its index for each of these, and one for each entry of others."""

    async def test(world: World) -> None:
        made, target = await Striped(world).prepare(), Target([OK] * COUNT)
        calls = OpenCalls(made.client.context.transport)
        assert len(made.lanes) == 3
        if not knows_password:
            made.copier._access = made.copier._access._replace(digest=None)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(merging, "READ_CHUNK_BYTES_TARGET", at_once)
            patch.setattr(made.client.context.transport, "read", calls.read)
            await made.send(target)
        assert calls.bounds == {max(1, at_once // 3)}, "all lanes as much as one that is alone"
        assert sent(target) == made.wanted
        assert (target.open, target.most_open) == (0, 1)
        if at_once == 10**6:
            assert len(target.sent) <= COUNT // 5, "a source here sends an entry at a time"
        assert made.counts["entries"] == len(made.wanted)
        for lane in made.lanes if knows_password else ():
            assert any(made.copier.was_brought(lane, each) for each in made.others)

    run_virtually(test, bookies=6)


def test_what_a_member_lacks_of_its_lanes_comes_in_their_order() -> None:
    async def test(world: World) -> None:
        made, target = await Striped(world).prepare(), Target([OK] * COUNT)
        held = [(0, 9), (20, 29), (41, 41)]
        await made.send(target, [part for lane in made.lanes for part in missing(lane, held)])
        lacking = [e for e in made.wanted if not any(low <= e <= high for low, high in held)]
        assert sent(target) == lacking

    run_virtually(test, bookies=6)


def test_target_that_fails_ends_all_lanes() -> None:
    async def test(world: World) -> None:
        made = await Striped(world).prepare()
        target = Target([OK] * 2 + [BookieStatus.IO_ERROR] + [OK] * COUNT)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(merging, "READ_CHUNK_BYTES_TARGET", 100)
            with pytest.raises(TargetFailedError):
                await made.send(target)
        assert target.open == 0 and sent(target) == sorted(sent(target))
        assert len(sent(target)) < len(made.wanted)

    run_virtually(test, bookies=6)


@pytest.mark.parametrize("lane", [0, 1, 2])
@pytest.mark.parametrize("at_once", [100, 10**6])
def test_entry_that_nobody_brings_ends_its_own_lane_only(at_once: int, lane: int) -> None:
    async def test(world: World) -> None:
        made, target = await Striped(world).prepare(), Target([OK] * COUNT)
        first, _, stride = made.lanes[lane][:3]
        hole = first + 2 * stride
        for bookie in world.bookies.values():
            if made.ledger_id in bookie.ledgers:
                bookie.ledgers[made.ledger_id].entries.pop(hole, None)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(merging, "READ_CHUNK_BYTES_TARGET", at_once)
            with pytest.raises(NoSuchEntryError, match=f"entry {hole} "):
                await made.send(target)
        cut = {e for e in made.wanted if e >= hole and (e - hole) % stride == 0}
        assert sent(target) == [e for e in made.wanted if e not in cut]
        assert target.open == 0

    run_virtually(test, bookies=6)


def test_entry_that_is_lost_is_told_before_one_that_cannot_be_read_now() -> None:
    async def test(world: World) -> None:
        made, target = await Striped(world).prepare(), Target([OK] * COUNT)
        go_on, lost = made.copier._go_on, made.lanes[2].first

        async def fail(lane: LaneCopy, position: int, *rest: Any) -> int:
            if lane.first == made.lanes[1].first:
                raise BookieUnavailableError("cannot be read now")
            if lane.first == lost:
                raise NoSuchEntryError("is lost")
            return await go_on(lane, position, *rest)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(made.copier, "_go_on", fail)
            with pytest.raises(NoSuchEntryError, match="is lost"):
                await made.send(target)
        assert sent(target) == [e for e in made.wanted if e % 5 == made.lanes[0].first % 5]

    run_virtually(test, bookies=6)


def test_worker_brings_all_lanes_together() -> None:
    """A bookie that is to be named, and a member that lacks entries."""

    async def test(world: World) -> None:
        await give_cookies(world)
        made = await Striped(world).prepare()
        held = world.bookies[made.others[0]].ledgers[made.ledger_id].entries
        for entry_id in (gone := [each for each in held if each > 20]):
            del held[entry_id]
        await lose(world, made.lost)
        await mark(made.client.store, made.ledger_id, frozenset([made.lost]), 2)
        await (await crew(world)).worker.run_pass()
        assert made.target in await names(made.client, made.ledger_id)
        copied = world.bookies[made.target].ledgers[made.ledger_id].entries
        assert list(copied) == made.wanted
        assert gone and list(held) == sorted(held) and set(gone) <= set(held)

    run_virtually(test, bookies=6)


def test_entry_that_is_lost_holds_up_no_page_behind_it() -> None:
    """A bookie says page by page what it holds: a striped ledger has many."""

    async def test(world: World) -> None:
        await give_cookies(world)
        made = await Striped(world).prepare()
        member, lost = made.others[0], min(made.wanted)
        for bookie in world.bookies.values():
            if made.ledger_id in bookie.ledgers:
                bookie.ledgers[made.ledger_id].entries.pop(lost, None)
            bookie.entry_page = paged(bookie.entry_page)  # type: ignore[method-assign]
        held = world.bookies[member].ledgers[made.ledger_id].entries
        for entry_id in (gone := [each for each in held if each > 40]):
            del held[entry_id]
        await mark(made.client.store, made.ledger_id, frozenset(), 2)
        await (await crew(world)).passes(100)
        assert gone and set(gone) <= set(held)

    run_virtually(test, bookies=6)


def paged(whole: Callable[[LedgerId, EntryId], EntryPage | None]) -> Callable[..., Any]:
    """The same in pages of five stretches."""

    def page(ledger_id: LedgerId, first: EntryId) -> EntryPage | None:
        found = whole(ledger_id, first)
        if found is None or len(found.ranges) <= 5:
            return found
        return EntryPage(found.ranges[:5], found.ranges[5][0])

    return page
