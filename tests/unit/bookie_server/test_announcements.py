"""What a bookie announces while it serves: which changes are news, and what a stop leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import cast

import msgspec
import pytest

from bookie_server.registration import (
    REASON_CHARACTERS_MAX,
    Registration,
    check_identity,
    format_new,
)
from spark_ledger.errors import ConfigurationError
from spark_ledger.limits.bookie import BOOKIE_REFRESH_INTERVAL_S
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.cookies import cookie_path, decode_cookie, encode_cookie
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.types import BookieId, BookieInfo, BookieState
from tests.unit.bookie_server.test_registration import config_in
from tests.unit.virtual_time import run_in_virtual_time

ME = BookieId("b1")
WRITABLE, READ_ONLY = BookieState.WRITABLE, BookieState.READ_ONLY


class Registry:
    """What was announced, and when it was withdrawn: then there is None."""

    def __init__(self) -> None:
        self.announced: list[BookieInfo | None] = []
        self.takes_s = 0.0

    async def register(self, info: BookieInfo) -> None:
        await asyncio.sleep(self.takes_s)
        self.announced.append(info)

    async def deregister(self) -> None:
        self.announced.append(None)
        await asyncio.sleep(2 * self.takes_s)


class World:
    """A bookie that serves; its state, its free space and its reason."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.state, self.free, self.reason = WRITABLE, 1000, ""
        self.registration = Registration(
            cast("BookieRegistry", self.registry),
            BookieInfo(ME, "h:1"),
            state=lambda: self.state,
            free_bytes=lambda: self.free,
            reason=lambda: self.reason,
        )

    @property
    def count(self) -> int:
        return len(self.registry.announced)


def serving(test: Callable[[World], Coroutine[object, object, None]]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            world = World()
            await world.registration.start()
            await test(world)
            await world.registration.stop()

        run_in_virtual_time(main())

    run.__name__ = test.__name__
    return run


async def interval() -> None:
    await asyncio.sleep(BOOKIE_REFRESH_INTERVAL_S * 1.01)


@pytest.mark.parametrize(
    ("free", "is_news"),
    [
        ([1000], False),
        ([1051], False),
        ([1053], True),
        ([951], False),
        ([949], True),
        ([1040, 1080], True),
        ([1040, 1000, 960], False),
        ([0], True),
    ],
)
def test_free_space_is_announced_again_when_it_is_another_by_a_twentieth(
    free: list[int], is_news: bool
) -> None:
    """Than what was announced last, however slowly it has become so."""

    @serving
    async def run(world: World) -> None:
        for world.free in free:
            await interval()
        assert world.count == 1 + is_news
        await interval()
        assert world.count == 1 + is_news, "once"
        last = world.registry.announced[-1]
        assert last is not None and last.free_bytes == (free[-1] if is_news else 1000)

    run()


@serving
async def test_reason_is_news_when_it_comes_or_goes_and_not_when_its_numbers_change(
    world: World,
) -> None:
    for state, reason, is_news in (
        (READ_ONLY, "disk full: 95 %", True),
        (READ_ONLY, "disk full: 96 %", False),
        (READ_ONLY, "", True),
        (READ_ONLY, "disk full: 95 %", True),
        (WRITABLE, "", True),
        (WRITABLE, "", False),
    ):
        before = world.count
        world.state, world.reason = state, reason
        await interval()
        assert world.count == before + is_news, (state, reason)


@serving
async def test_long_reason_is_cut(world: World) -> None:
    world.state, world.reason = READ_ONLY, "x" * 10_000
    await interval()
    last = world.registry.announced[-1]
    assert last is not None and len(last.reason) == REASON_CHARACTERS_MAX


@serving
async def test_change_that_was_announced_soon_is_not_announced_again(world: World) -> None:
    world.state = READ_ONLY
    world.registration.refresh_soon()
    await asyncio.sleep(0.001)
    assert world.count == 2
    world.registration.refresh_soon()
    await interval()
    await interval()
    assert world.count == 2


def test_announcement_that_is_on_its_way_at_the_stop_leaves_nothing() -> None:
    async def main() -> None:
        world = World()
        await world.registration.start()
        world.state, world.registry.takes_s = READ_ONLY, 1.0
        world.registration.refresh_soon()
        await asyncio.sleep(0.5)
        await world.registration.stop()
        await asyncio.sleep(5.0)
        assert world.registry.announced[1:] == [None]

    run_in_virtual_time(main())


def test_bookie_that_was_never_announced_withdraws_nothing() -> None:
    """Another process may be registered under its name."""
    world = World()
    asyncio.run(world.registration.stop())
    assert world.registry.announced == []


@pytest.mark.parametrize("ledgers", [["l1", "l0"], ["l0", "l2"], ["l0"]])
def test_cookie_with_other_ledger_directories_is_refused(
    tmp_path: Path, ledgers: list[str]
) -> None:
    """Also where the journal is the same, and where they are in another order."""

    async def main() -> None:
        store = MemoryMetadataStore()
        cookie = await format_new(config_in(tmp_path), store)
        await check_identity(cookie, store)
        node = await store.get(cookie_path(ME))
        other = tuple(str(tmp_path / name) for name in ledgers)
        changed = replace_directories(node.value, other)
        await store.put(cookie_path(ME), changed, node.version)
        with pytest.raises(ConfigurationError, match="another bookie may have the same name"):
            await check_identity(cookie, store)

    asyncio.run(main())


def replace_directories(data: bytes, ledgers: tuple[str, ...]) -> bytes:
    return encode_cookie(
        msgspec.structs.replace(decode_cookie(ME, data), ledger_directories=ledgers)
    )
