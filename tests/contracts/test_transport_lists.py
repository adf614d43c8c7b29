"""What bookies hold, asked for over each transport: by page."""

from __future__ import annotations

from spark_ledger.types import EntryId, LedgerId
from tests.contracts.test_transport import (
    BOOKIE,
    LEDGER,
    OK,
    World,
    acknowledged,
    make_run,
    on_both,
    until,
)


@on_both
async def test_ranges_held_are_listed(world: World) -> None:
    appender = world.open()
    appender.send(make_run(0, 3))
    appender.send(make_run(7, 2))
    await until(lambda: acknowledged(world) == 8, "the adds")
    listed = await world.transport.list_entries(BOOKIE, LEDGER, timeout_s=5)
    assert listed == (OK, [(0, 2), (7, 8)], None)
    appender.send(make_run(20, 1))
    await until(lambda: acknowledged(world) == 20, "the add")
    for entry, page in (
        (0, (OK, [(0, 2), (7, 8)], 20)),
        (8, (OK, [(8, 8), (20, 20)], None)),
        (21, (OK, [], None)),
    ):
        listed = await world.transport.list_entries(BOOKIE, LEDGER, EntryId(entry), timeout_s=5)
        assert listed == page


@on_both
async def test_ledgers_held_are_listed(world: World) -> None:
    for ledger in (LEDGER, LEDGER + 1, LEDGER + 5):
        world.open(ledger).send(make_run(0, ledger=ledger))
    await until(lambda: len(world.results) == 3, "the adds")
    for first, ledgers in (
        (0, [LEDGER, LEDGER + 1, LEDGER + 5]),
        (LEDGER, [LEDGER, LEDGER + 1, LEDGER + 5]),
        (LEDGER + 1, [LEDGER + 1, LEDGER + 5]),
        (LEDGER + 6, []),
    ):
        listed = await world.transport.list_ledgers(BOOKIE, LedgerId(first), timeout_s=5)
        assert listed == (OK, ledgers)
