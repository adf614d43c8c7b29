"""Access keys over both transports: who shows a wrong one is refused, and changes nothing."""

from __future__ import annotations

from spark_ledger.types import BookieStatus, EntryId
from tests.contracts.test_transport import (
    BOOKIE,
    LEDGER,
    OK,
    World,
    acknowledged,
    ids,
    make_run,
    on_both,
    until,
)


@on_both
async def test_a_wrong_access_key_is_unauthorized_and_fences_nothing(world: World) -> None:
    world.open(key=b"right").send(make_run(0))
    await until(lambda: acknowledged(world) == 0, "the first add")
    world.open(key=b"wrong").send(make_run(1))
    await until(lambda: len(world.results) == 2, "the refusal")
    assert world.results[1].status is BookieStatus.UNAUTHORIZED
    end = await world.transport.read_last_confirmed(
        BOOKIE, LEDGER, fence=True, access_key=b"wrong", timeout_s=5
    )
    assert end.status is BookieStatus.UNAUTHORIZED
    chunks = await world.read(0, 0, fence=True, key=b"wrong")
    assert [chunk.status for chunk in chunks] == [BookieStatus.UNAUTHORIZED]
    assert not world.bookie.ledgers[LEDGER].fenced
    status = await world.transport.write_last_confirmed(
        BOOKIE, LEDGER, EntryId(0), access_key=b"wrong", timeout_s=5
    )
    assert status is BookieStatus.UNAUTHORIZED
    status = await world.transport.write_last_confirmed(
        BOOKIE, LEDGER, EntryId(0), access_key=b"right", timeout_s=5
    )
    assert status is OK


@on_both
async def test_a_read_need_not_show_a_key_and_shows_no_wrong_one(world: World) -> None:
    world.open(key=b"key").send(make_run(0, 2))
    await until(lambda: acknowledged(world) == 1, "they are written")
    assert ids(await world.read(0, 1)) == ids(await world.read(0, 1, key=b"key")) == [0, 1]
    (refused,) = await world.read(0, 1, key=b"that of another ledger with this id")
    assert (refused.status, refused.run) == (BookieStatus.UNAUTHORIZED, None)
