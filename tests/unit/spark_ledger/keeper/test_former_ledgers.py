"""Former ledgers go beside what is lost, and beside what else a keeper has to do (rule K11)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from spark_ledger.keeper import deletions, streams
from spark_ledger.keeper.deletions import DeletionsInTurn, LedgerDeletions
from spark_ledger.keeper.streams import StreamKeeper
from spark_ledger.metadata.base import Operation
from spark_ledger.metadata.ledgers import ledger_path
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.stream.commit.commit_log import CommitLog, NamedLedgers
from spark_ledger.stream.model import StreamConfig
from spark_ledger.stream.retention import handle
from spark_ledger.stream.stream import Stream
from spark_ledger.types import LedgerId, LedgerMetadata, Versioned
from tests.unit.spark_ledger.client.world import World, run
from tests.unit.spark_ledger.keeper.test_streams import closed_commits, elected, ledgers
from tests.unit.spark_ledger.keeper.world import Clock, new_stream, passes, read
from tests.unit.spark_ledger.stream.world import former_of, small_manifests


async def lose_leaf(world: World, stream: Stream) -> None:
    """The newest leaf of live commits, whose ledger is no former one."""
    manifests = stream._log.manifests
    root = await manifests.read_root(latest=True)
    leaf = (await manifests.leaves(root, 0, root.sealed))[-1]
    path = ledger_path(LedgerId(leaf.pointer.ledger_id))
    await MemoryMetadataStore(world.tree).delete(path)


@pytest.mark.parametrize("waits", ["dropped", "packed"])
def test_former_ledgers_go_beside_a_lost_leaf_of_live_commits(
    waits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_manifests(monkeypatch, leaf=2, fan_out=3)

    async def test(world: World) -> None:
        stream = await new_stream(await world.client())
        await closed_commits(world, stream, 15)
        if waits == "packed":
            assert await stream.optimizer.run_all(entries_min=1)
        await closed_commits(world, stream, 20)
        if waits == "dropped":
            await stream.retention.truncate((2,))
        former = await former_of(stream)
        assert former and former < await ledgers(world)
        await lose_leaf(world, stream)
        clock = Clock()
        cared = await elected(world, clock)
        await passes(cared, clock, 600)
        assert not former & await ledgers(world)
        assert "'s'" in cared._stream_keeper.last_error, "and the loss is told"

    run(test)


def test_stream_with_many_commits_keeps_so_many_former_ledgers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    small_manifests(monkeypatch, leaf=2, fan_out=3)
    monkeypatch.setattr(handle, "MERGED_LEDGERS_KEPT", 7)

    async def test(world: World) -> None:
        stream = await new_stream(await world.client())
        await closed_commits(world, stream, 14)
        clock = Clock()
        cared = await elected(world, clock, replaced_grace_s=1e6)
        former = await former_of(stream)
        await passes(cared, clock, 120)
        assert former < await ledgers(world) and "wait for backups" not in caplog.text
        await closed_commits(world, stream, 36)
        former = await former_of(stream)
        await passes(cared, clock, 120)
        assert 0 < len(former & await ledgers(world)) <= 7 + 3 < len(former)
        assert caplog.text.count("wait for backups") == 1
        assert await read(stream) == list(range(50))

    run(test)


def slow_deletions(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Deletions that take a second each; those that were done."""
    inner, done = LedgerDeletions.delete, list[int]()

    async def delete(
        self: LedgerDeletions, ledger: Versioned[LedgerMetadata], checks: Sequence[Operation]
    ) -> bool:
        clock.now += 1.0
        done.append(ledger.value.ledger_id)
        return await inner(self, ledger, checks)

    monkeypatch.setattr(LedgerDeletions, "delete", delete)
    return done


def test_sweep_deletes_former_ledgers_for_a_while_and_each_stream_has_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_manifests(monkeypatch, leaf=2, fan_out=3)
    monkeypatch.setattr(deletions, "PASS_PART_S", 5.0)

    async def test(world: World) -> None:
        client, clock = await world.client(), Clock()
        former: dict[str, set[int]] = {}
        for name in ("a", "b", "c"):
            stream = await new_stream(client, name)
            await closed_commits(world, stream, 38)
            former[name] = {int(each) for each in await former_of(stream)}
            assert len(former[name]) >= 15
        cared = await elected(world, clock)
        done = slow_deletions(clock, monkeypatch)
        began = list[str]()
        for _ in range(100):
            before = len(done)
            await passes(cared, clock, 10)
            # One page's ledgers at a time: what has begun is finished.
            assert len(done) - before < 5 + 3 + 1
            began += [n for n in former if former[n].intersection(done[before:])]
            if not cared._stream_keeper.hurries:
                break
        else:
            raise AssertionError("it does not end")
        left = await ledgers(world)
        assert not any(each & left for each in former.values())
        # At the first one nobody waits yet: "a" has begun when the others come to wait behind it.
        assert began[:6] == ["a", "a", "b", "c", "a", "b"]

    run(test)


@pytest.mark.parametrize("kind", ["rows", "former"])
def test_stream_with_ledgers_of_one_kind_has_its_turn_beside_one_that_has_both(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes first spends the time of both kinds on its own."""
    monkeypatch.setattr(deletions, "PASS_PART_S", 5.0)
    left = {("a", "rows"): 200, ("a", "former"): 200, ("b", kind): 20}

    async def test(world: World) -> None:
        client, clock = await world.client(), Clock()
        for name in ("a", "b"):
            await new_stream(client, name)

        def delete(which: DeletionsInTurn, key: tuple[str, str]) -> None:
            with which.turn_of(key[0]) as turn:
                while left.get(key) and turn.may_go_on():
                    with which._counted():
                        clock.now += 1.0
                    left[key] -= 1

        async def visit(
            keeper: StreamKeeper, name: str, config: Versioned[StreamConfig], now_ms: int
        ) -> None:
            delete(keeper._rows, (name, "rows"))
            delete(keeper._former, (name, "former"))

        monkeypatch.setattr(StreamKeeper, "_visit", visit)
        await passes(await elected(world, clock), clock, 160)
        assert not left["b", kind] and left["a", "rows"] and left["a", "former"], left

    run(test)


def test_what_live_commits_name_is_kept_beside_streams_that_were_only_merged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_manifests(monkeypatch)
    monkeypatch.setattr(streams, "SWEPT_STREAMS_MAX", 2)
    inner, seen = CommitLog.ledgers, list[int]()

    async def counted(log: CommitLog, numbers: Sequence[int]) -> dict[int, NamedLedgers]:
        seen.extend(numbers)
        return await inner(log, numbers)

    async def test(world: World) -> None:
        client, clock = await world.client(), Clock()
        stream = await new_stream(client)
        await closed_commits(world, stream, 20)
        for n in range(4):
            await closed_commits(world, await new_stream(client, f"merged-{n}"), 8)
        cared = await elected(world, clock)
        await stream.retention.truncate((1,))
        await passes(cared, clock, 900)
        await stream.retention.truncate((2,))
        monkeypatch.setattr(CommitLog, "ledgers", counted)
        await passes(cared, clock, 900)
        assert len(seen) <= 4, "not all live commits again"

    run(test)
