"""Commits to several streams, over every metadata store: in all of them, or in none."""

from __future__ import annotations

from typing import Any

import pytest

from spark_ledger.errors import ConflictError, OutcomeUnknownError
from spark_ledger.limits.stream import STREAMS_PER_COMMIT_MAX, TRANSACTION_BYTES_MAX
from spark_ledger.stream.commit import committer
from spark_ledger.stream.concurrency import run_all
from spark_ledger.stream.format import codec
from spark_ledger.stream.several import commit_to
from spark_ledger.stream.stream import Stream
from tests.contracts.test_commit_manifests import Open, Run, Session, run
from tests.unit.spark_ledger.stream.world import SCHEMA, loose

__all__ = ["run"]

PAIR: dict[str, Any] = {"sink_id": "q", "transaction_id": 7}


async def made(session: Session, count: int) -> list[Stream]:
    return await run_all(session.streams.create(f"s{n}", SCHEMA) for n in range(count))


async def heads(session: Session, count: int) -> list[int]:
    """How many commits each stream has, read anew."""
    return [(await (await session.streams.open(f"s{n}")).head()).next_commit for n in range(count)]


def test_commit_to_as_many_streams_as_allowed_is_one_transaction(run: Run) -> None:
    async def scenario(open_session: Open) -> None:
        session = await open_session()
        streams = await made(session, STREAMS_PER_COMMIT_MAX)
        parts = [(stream, [loose(1, 2)]) for stream in streams]
        assert all(commit.applied for commit in await commit_to(parts, **PAIR))
        assert not any(commit.applied for commit in await commit_to(parts, **PAIR))
        assert set(await heads(await open_session(), len(streams))) == {1}

    run(scenario)


@pytest.mark.parametrize("takes_effect", [True, False])
def test_lost_reply_of_several_streams_is_found_out_for_all(run: Run, takes_effect: bool) -> None:
    async def scenario(open_session: Open) -> None:
        session = await open_session()
        streams = await made(session, 3)
        send = session.store.transaction
        lost: list[bool] = []

        async def lose_once(operations: Any) -> None:
            if not lost:
                lost.append(True)
                if takes_effect:
                    await send(operations)
                raise OutcomeUnknownError("the reply was lost")
            await send(operations)

        session.transaction = lose_once  # type: ignore[attr-defined]
        commits = await commit_to([(stream, [loose(2)]) for stream in streams], **PAIR)
        assert lost and [commit.applied for commit in commits] == [True] * 3
        assert await heads(await open_session(), 3) == [1, 1, 1]

    run(scenario)


def test_part_that_fails_leaves_nothing_in_the_others(run: Run) -> None:
    async def scenario(open_session: Open) -> None:
        session, other = await open_session(), await open_session()
        streams = await made(session, 3)
        await (await other.streams.open("s1")).commit_segments([loose(1)], **PAIR)
        with pytest.raises(ConflictError, match="to 1 of these 3 streams"):
            await commit_to([(stream, [loose(2)]) for stream in streams], **PAIR)
        assert await heads(other, 3) == [0, 1, 0]

    run(scenario)


def test_transaction_at_its_bound_is_taken(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the bound is below what ZooKeeper takes."""

    async def scenario(open_session: Open) -> None:
        session = await open_session()
        streams = await made(session, 8)
        share = TRANSACTION_BYTES_MAX // 8 - 2048
        for bound in ("SEGMENT_LIST_NODE_BYTES_MAX", "SEGMENT_LISTS_BYTES_MAX"):
            monkeypatch.setattr(committer, bound, TRANSACTION_BYTES_MAX)
        one = len(codec.encode_segment_list((loose(5), loose(5)))) - len(
            codec.encode_segment_list((loose(5),))
        )
        segments = [loose(5)] * (share // one)
        size = len(codec.encode_segment_list(tuple(segments)))
        assert share * 0.9 < size <= share
        commits = await commit_to([(stream, segments) for stream in streams], **PAIR)
        assert all(commit.applied for commit in commits)

    run(scenario)
