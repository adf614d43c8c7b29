"""Which ledgers live commits name, as a keeper remembers it: against a look at all of them."""

from __future__ import annotations

import random
from contextlib import nullcontext

import pytest

from spark_ledger.errors import DataLossError
from spark_ledger.metadata.ledgers import ledger_path
from spark_ledger.stream.packs.model import Pack, Packs
from spark_ledger.stream.retention import live_names, names
from spark_ledger.stream.retention.live_names import LiveNames
from spark_ledger.stream.retention.names import names_of
from spark_ledger.types import LedgerId
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.retention.test_counts import naming
from tests.unit.spark_ledger.stream.retention.test_giving_back import Log
from tests.unit.spark_ledger.stream.test_lagging_server import behind
from tests.unit.spark_ledger.stream.world import (
    Deletions,
    another,
    root_of,
    run,
    small_manifests,
)

EVERY = [LedgerId(each) for each in range(9)]


def test_ledger_that_goes_on_being_named_is_live_when_its_first_commit_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A writer keeps a ledger for many commits: that of the newest one counts."""
    monkeypatch.setattr(live_names, "COMMITS_PER_BUCKET", 1)

    async def scenario() -> None:
        names, log = LiveNames(), Log([4], [5], [4], [6], [4])
        for first, end, found in ((0, 2, {4, 5}), (1, 3, {4, 5}), (2, 4, {4, 6}), (3, 5, {4, 6})):
            assert await names.named(log, EVERY, first, end) == found  # type: ignore[arg-type]
        assert await names.named(log, EVERY, 4, 5) == {4}  # type: ignore[arg-type]
        assert await names.named(log, EVERY, 5, 5) == set()  # type: ignore[arg-type]
        assert log.read == [0, 1, 2, 3, 4], "each commit once"

    run(scenario())


@pytest.mark.parametrize("kept_max", [0, 1, 3, 1000])
@pytest.mark.parametrize("at_once", [1, 2, 1000])
def test_names_that_are_remembered_are_those_of_the_commits_that_are_live_now(
    kept_max: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_names, "COMMITS_PER_BUCKET", at_once)
    seed = random.randrange(1 << 30)
    draw = random.Random(seed)

    async def scenario() -> None:
        for _ in range(20):
            named = [draw.sample(range(9), draw.choice([0, 1, 1, 2])) for _ in range(20)]
            remembered, log, packs = LiveNames(kept_max), Log(*named), Packs()
            first = end = 0
            for _ in range(12):
                first = draw.randint(first, end)
                end = draw.randint(end, min(20, end + 5))
                if draw.random() < 0.2:
                    begin = draw.randrange(20)
                    packs = Packs((Pack(begin, begin + 3, 0, 3, LedgerId(99), 1, 3, 10),))
                log.dropped = first
                wanted = draw.sample(EVERY, 4)
                live = packs.numbers_outside(first, end)
                expected = {each for each in wanted if any(each in named[n] for n in live)}
                found = await remembered.named(log, wanted, first, end, packs)  # type: ignore[arg-type]
                assert found == expected, f"seed {seed}"
                assert len(remembered._last) <= kept_max, f"seed {seed}: what it may keep"

    run(scenario())


def test_commits_are_read_a_bucket_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit may go on behind a part, also much later; each commit is read once."""
    monkeypatch.setattr(names, "COMMITS_PER_BUCKET", 3)

    async def scenario() -> None:
        stream = await naming(FakeLedgers(), *[[n] for n in range(8)])
        head = await stream.head()
        for first, parts in (
            (0, [(3, {0, 1, 2}), (6, {3, 4, 5}), (8, {6, 7})]),
            (4, [(6, {4, 5}), (8, {6, 7})]),
            (6, [(8, {6, 7})]),
            (8, []),
        ):
            found = [each async for each in names_of(stream._nodes, stream._log, head, first)]
            assert found == [*parts, (8, set()), (8, set())]

    run(scenario())


@pytest.mark.parametrize("earliest", [0, 2, 4])
def test_names_of_live_commits_whose_page_is_lost_are_an_error(
    earliest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An audit would take their ledgers for such that nothing names (rule K9)."""
    small_manifests(monkeypatch, leaf=2, fan_out=100)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await naming(ledgers, *[[n] for n in range(9)])
        await stream._committer.sealer.seal(9)
        await stream.retention.truncate((earliest,))
        for page in root_of(ledgers).pages():
            if page.first == earliest:
                await ledgers.store.delete(ledger_path(LedgerId(page.pointer.ledger_id)))
        fresh = await another(ledgers)[1].open("s")
        with pytest.raises(DataLossError, match="older commits cannot be read"):
            async for _ in names_of(fresh._nodes, fresh._log, await fresh.head()):
                pass

    run(scenario())


@pytest.mark.parametrize("earliest", [1, 4, 5, 6, 7, 8])
def test_audit_goes_on_behind_what_was_given_back_since_it_began(
    earliest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its metadata server knows nothing of that yet."""
    small_manifests(monkeypatch, leaf=2, fan_out=100)
    monkeypatch.setattr(names, "COMMITS_PER_BUCKET", 4)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await ledgers.store.create("keeper", b"")
        stream = await naming(ledgers, *[[n] for n in range(9)])
        await stream._committer.sealer.seal(9)
        audit = await behind(ledgers, "head", "manifests")
        parts = names_of(audit._nodes, audit._log, await audit.head())
        assert await anext(parts) == (4, {0, 1, 2, 3})
        await stream.retention.truncate((earliest,))
        keeper = stream.retention.reclaimer(Deletions(ledgers), LiveNames())
        while not (await keeper.step(earliest)).is_done:
            pass
        found = [part async for part in parts]
        named = set[LedgerId]().union(*(part.ledgers for part in found))
        pages = root_of(ledgers).ledgers()
        assert named & set(EVERY) >= set(range(max(4, earliest), 9)) and named >= pages
        assert [part.behind for part in found] == [8, 9, 9, 9]

    run(scenario())


@pytest.mark.parametrize(("earliest", "is_lost"), [(0, True), (2, True), (3, True), (4, False)])
def test_page_above_leaves_may_be_gone_only_if_all_of_it_was_dropped(
    earliest: int, is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the leaves that it names were taken for such that nothing names (rule K9)."""
    small_manifests(monkeypatch, leaf=2, fan_out=2)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await naming(ledgers, *[[n] for n in range(7)])
        while root_of(ledgers).level_to_merge() is not None or not root_of(ledgers).sealed:
            await stream._committer.sealer.seal(7)
            await stream._committer.sealer.close()
        above = root_of(ledgers).pages()[0]
        assert (above.level, above.first) == (1, 0)
        await stream.retention.truncate((earliest,))
        await ledgers.store.delete(ledger_path(LedgerId(above.pointer.ledger_id)))
        fresh = await another(ledgers)[1].open("s")
        head = await fresh.head()
        found: set[LedgerId] = set()
        with pytest.raises(DataLossError) if is_lost else nullcontext():
            async for part in names_of(fresh._nodes, fresh._log, head, first=6):
                found |= part.ledgers
        assert is_lost or found >= root_of(ledgers).ledgers()

    run(scenario())
