"""Identity: formatted once, checked at start, and announced with state and free space."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from bookie_server import registration
from bookie_server.config import BookieConfig, parse
from bookie_server.registration import (
    Registration,
    check_identity,
    format_new,
    is_formatted,
    local_cookie,
)
from spark_ledger.errors import (
    ConfigurationError,
    CorruptionError,
    LedgerError,
    UnauthorizedError,
)
from spark_ledger.limits.bookie import BOOKIE_REFRESH_INTERVAL_S
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.cluster import CLUSTER_PATH, ensure_cluster
from spark_ledger.metadata.codec import encode_bookie
from spark_ledger.metadata.collection import (
    CollectionNode,
    CollectionOrder,
    collection_path,
    read_collection,
    read_order,
    write_order,
)
from spark_ledger.metadata.cookies import cookie_path, leaving_path
from spark_ledger.metadata.json_nodes import encode_node
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, MemoryTree, Outcome
from spark_ledger.repair.nodes import leaving
from spark_ledger.types import BookieId, BookieInfo, BookieState


def config_in(directory: Path, bookie_id: str = "b1") -> BookieConfig:
    text = (
        f'metadata = "zk://h/x"\nbookie_id = "{bookie_id}"\n[storage]\n'
        'journal_directory = "journal"\nledger_directories = ["l0", "l1"]\n'
    )
    return parse(text, directory / "bookie.toml")


Test = Callable[[BookieConfig, MemoryMetadataStore], Awaitable[None]]


def with_store(test: Test) -> Callable[[Path], None]:
    def run(tmp_path: Path) -> None:
        asyncio.run(test(config_in(tmp_path), MemoryMetadataStore()))  # type: ignore[arg-type]

    run.__name__ = test.__name__
    return run


@with_store
async def test_a_new_bookie_is_known_everywhere(
    config: BookieConfig, store: MemoryMetadataStore
) -> None:
    assert not is_formatted(config)
    cookie = await format_new(config, store)
    assert is_formatted(config)
    assert local_cookie(config) == cookie
    assert cookie.bookie_id == "b1"
    assert await BookieRegistry(store).list_cookies() == ["b1"]
    await check_identity(cookie, store)


@with_store
async def test_directory_that_cannot_be_looked_into_is_named_before_anything_is_made(
    config: BookieConfig, store: MemoryMetadataStore
) -> None:
    """As one of another user: a restart, which another exit code asks for, meets it again."""
    journal = str(config.journal_directory.with_name("x" * 300))
    storage = msgspec.structs.replace(config.storage, journal_directory=journal)
    config = msgspec.structs.replace(config, storage=storage)
    with pytest.raises(ConfigurationError, match=r"bookie\.json cannot be read: .*too long"):
        await format_new(config, store)
    assert not await BookieRegistry(store).list_cookies()
    assert not config.ledger_directories[0].exists()


@with_store
async def test_a_bookie_without_a_name_gets_a_random_one(
    config: BookieConfig, store: MemoryMetadataStore
) -> None:
    names = set()
    for place in ("one", "two"):
        directory = config.journal_directory.parent / place
        names.add((await format_new(config_in(directory, ""), store)).bookie_id)
    assert len(names) == 2


@with_store
async def test_a_name_is_given_once(config: BookieConfig, store: MemoryMetadataStore) -> None:
    await format_new(config, store)
    other = config_in(config.journal_directory.parent / "elsewhere")
    with pytest.raises(ConfigurationError, match=r"'b1' is taken.*decommission b1`"):
        await format_new(other, store)
    assert not other.journal_directory.exists()


@with_store
async def test_name_of_a_bookie_that_has_left_begins_anew(
    config: BookieConfig, store: MemoryMetadataStore
) -> None:
    """It was stopped late, so that its decommission left the word for it."""
    await store.create(leaving_path(BookieId("b1")), b"")
    await store.create(leaving_path(BookieId("b2")), b"")
    await format_new(config, store)
    assert await leaving(store) == {"b2"}, "the new bookie was not told to leave"


@with_store
async def test_bookie_of_a_name_that_has_left_begins_without_its_mark(
    config: BookieConfig, store: MemoryMetadataStore
) -> None:
    """Its disk knows no mark: with the old one it would take the metadata for restored (rule G4),
    and with an old order it might be told that they are right."""
    await format_new(config, store)
    await store.create(collection_path(BookieId("b1")), encode_node(CollectionNode(mark="old")))
    await write_order(store, BookieId("b1"), CollectionOrder(token="t", accept_restored=True))
    await store.delete(cookie_path(BookieId("b1")))
    await format_new(config_in(config.journal_directory.parent / "again"), store)
    assert await read_collection(store, BookieId("b1")) is None
    assert await read_order(store, BookieId("b1")) is None


@with_store
async def test_directories_in_use_are_not_formatted_and_leave_no_trace(
    config: BookieConfig, store: MemoryMetadataStore
) -> None:
    config.journal_directory.mkdir(parents=True)
    (config.journal_directory / "thesis.txt").write_text("precious")
    with pytest.raises(ConfigurationError, match=r"thesis\.txt"):
        await format_new(config, store)
    assert await BookieRegistry(store).list_cookies() == []


@with_store
async def test_directories_without_a_cookie_are_refused(
    config: BookieConfig, store: MemoryMetadataStore
) -> None:
    with pytest.raises(ConfigurationError, match="never formatted"):
        local_cookie(config)
    await format_new(config, store)
    shutil.rmtree(config.ledger_directories[1])
    config.ledger_directories[1].mkdir()
    with pytest.raises(ConfigurationError, match="l1"):
        local_cookie(config)


@with_store
async def test_another_configured_name_is_refused(
    config: BookieConfig, store: MemoryMetadataStore
) -> None:
    await format_new(config, store)
    with pytest.raises(ConfigurationError, match="belongs to bookie b1, not to b2"):
        local_cookie(config_in(config.journal_directory.parent, "b2"))


@with_store
async def test_another_cluster_is_refused(config: BookieConfig, store: MemoryMetadataStore) -> None:
    cookie = await format_new(config, store)
    other = MemoryMetadataStore(MemoryTree())
    with pytest.raises(ConfigurationError, match="no cluster under this metadata root"):
        await check_identity(cookie, other)
    await ensure_cluster(other)
    with pytest.raises(ConfigurationError, match=f"belongs to cluster {cookie.cluster_id}"):
        await check_identity(cookie, other)


@with_store
async def test_a_removed_bookie_is_refused(
    config: BookieConfig, store: MemoryMetadataStore
) -> None:
    cookie = await format_new(config, store)
    await store.delete(cookie_path(BookieId("b1")))
    with pytest.raises(ConfigurationError, match="was removed from its cluster"):
        await check_identity(cookie, store)


@with_store
async def test_a_name_that_was_given_anew_elsewhere_is_refused(
    config: BookieConfig, store: MemoryMetadataStore
) -> None:
    cookie = await format_new(config, store)
    await store.delete(cookie_path(BookieId("b1")))
    await format_new(config_in(config.journal_directory.parent / "elsewhere"), store)
    with pytest.raises(ConfigurationError, match="elsewhere"):
        await check_identity(cookie, store)


@with_store
async def test_an_unreadable_cookie_of_the_cluster_is_named(
    config: BookieConfig, store: MemoryMetadataStore
) -> None:
    cookie = await format_new(config, store)
    node = await store.get("bookies/cookies/b1")
    await store.put("bookies/cookies/b1", b"{}", node.version)
    with pytest.raises(ConfigurationError, match="cookie of bookie b1 cannot be read"):
        await check_identity(cookie, store)
    assert msgspec.json.decode((await store.get(CLUSTER_PATH)).value)["cluster_id"]


def registration_over(
    store: MemoryMetadataStore, state: list[BookieState], free: list[int]
) -> Registration:
    info = BookieInfo(BookieId("b1"), "h:1", rack="/r")
    registry = BookieRegistry(store)
    return Registration(registry, info, state=lambda: state[0], free_bytes=lambda: free[0])


def test_state_and_free_space_are_kept_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "BOOKIE_REFRESH_INTERVAL_S", 0.01)

    async def main() -> None:
        tree = MemoryTree()
        failing = [False]

        def interpose(_name: str, _path: str) -> Fault:
            return Fault(Outcome.UNAVAILABLE if failing[0] else Outcome.NORMAL)

        state, free = [BookieState.WRITABLE], [1000]
        announced = registration_over(MemoryMetadataStore(tree, interpose=interpose), state, free)
        await announced.start()
        looking = BookieRegistry(MemoryMetadataStore(tree))

        async def until(want: BookieInfo) -> None:
            async with asyncio.timeout(10):
                while await looking.get(BookieId("b1")) != want:
                    await asyncio.sleep(0.005)

        await until(BookieInfo(BookieId("b1"), "h:1", rack="/r", free_bytes=1000))
        free[0] = 990
        await asyncio.sleep(0.1)
        await until(BookieInfo(BookieId("b1"), "h:1", rack="/r", free_bytes=1000))
        failing[0] = True
        free[0] = 500
        state[0] = BookieState.READ_ONLY
        await asyncio.sleep(0.1)
        failing[0] = False
        await until(BookieInfo(BookieId("b1"), "h:1", BookieState.READ_ONLY, "/r", 500))
        await announced.stop()
        assert await looking.list() == []

    asyncio.run(main())


def test_changed_state_is_announced_at_once_with_its_reason() -> None:
    """The usual interval is longer than what a test waits for."""

    async def main() -> None:
        tree = MemoryTree()
        reason = [""]
        announced = Registration(
            BookieRegistry(MemoryMetadataStore(tree)),
            BookieInfo(BookieId("b1"), "h:1"),
            state=lambda: BookieState.READ_ONLY if reason[0] else BookieState.WRITABLE,
            free_bytes=lambda: 7,
            reason=lambda: reason[0],
        )
        await announced.start()
        looking = BookieRegistry(MemoryMetadataStore(tree))
        for text in ("disk full: /d", ""):
            reason[0] = text
            announced.refresh_soon()
            async with asyncio.timeout(BOOKIE_REFRESH_INTERVAL_S / 2):
                while (info := await looking.get(BookieId("b1"))) is None or info.reason != text:
                    await asyncio.sleep(0.005)
            expected = BookieState.READ_ONLY if text else BookieState.WRITABLE
            assert info.state is expected
        await announced.stop()

    asyncio.run(main())


class RefusingRegistry(BookieRegistry):
    """Refuses what it is asked to announce, once for each error."""

    def __init__(self, store: MemoryMetadataStore, errors: list[LedgerError]) -> None:
        super().__init__(store)
        self._errors = errors

    async def register(self, info: BookieInfo) -> None:
        if self.registered and self._errors:
            raise self._errors.pop()
        await super().register(info)


@pytest.mark.parametrize("error", [UnauthorizedError("no"), CorruptionError("what?")])
def test_state_that_the_store_refuses_for_any_reason_is_announced_later(
    error: LedgerError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "BOOKIE_REFRESH_INTERVAL_S", 0.01)

    async def main() -> None:
        store, state = MemoryMetadataStore(), [BookieState.WRITABLE]
        announced = Registration(
            RefusingRegistry(store, [error]),
            BookieInfo(BookieId("b1"), "h:1"),
            state=lambda: state[0],
            free_bytes=lambda: 7,
        )
        await announced.start()
        state[0] = BookieState.READ_ONLY
        await until_announced(store, BookieState.READ_ONLY)
        await announced.stop()

    asyncio.run(main())


def test_change_that_comes_while_another_is_announced_is_announced_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not at the next interval."""
    monkeypatch.setattr(registration, "BOOKIE_REFRESH_INTERVAL_S", 3600.0)

    async def main() -> None:
        store = MemoryMetadataStore(MemoryTree())
        registry, state = BookieRegistry(store), [BookieState.WRITABLE]
        announced = Registration(
            registry,
            BookieInfo(BookieId("b1"), "h:1"),
            state=lambda: state[0],
            free_bytes=lambda: 7,
        )
        await announced.start()
        register = registry.register

        async def late(info: BookieInfo) -> None:
            await register(info)
            if info.state is BookieState.READ_ONLY:
                state[0] = BookieState.WRITABLE
                announced.refresh_soon()
                await asyncio.sleep(0)

        monkeypatch.setattr(registry, "register", late)
        for _ in range(2):
            state[0] = BookieState.READ_ONLY
            announced.refresh_soon()
            await asyncio.sleep(0.01)
            await until_announced(store, BookieState.WRITABLE)
        await announced.stop()

    asyncio.run(main())


async def until_announced(store: MemoryMetadataStore, state: BookieState) -> BookieInfo:
    looking = BookieRegistry(store)
    async with asyncio.timeout(10):
        while (info := await looking.get(BookieId("b1"))) is None or info.state is not state:
            await asyncio.sleep(0.001)
    return info


def test_a_store_that_is_down_does_not_hold_up_the_stop() -> None:
    async def main() -> None:
        failing = [False]

        def interpose(_name: str, _path: str) -> Fault:
            return Fault(Outcome.UNAVAILABLE if failing[0] else Outcome.NORMAL)

        store = MemoryMetadataStore(interpose=interpose)
        announced = registration_over(store, [BookieState.WRITABLE], [1])
        await announced.start()
        failing[0] = True
        await announced.stop()

    asyncio.run(main())


def test_session_that_comes_back_in_the_last_moment_is_waited_for() -> None:
    async def main() -> None:
        tree = MemoryTree()
        other = MemoryMetadataStore(tree)
        info = BookieInfo(BookieId("b1"), "h:9")
        await other.create("bookies/readonly/b1", encode_bookie(info), ephemeral=True)
        announced = registration_over(MemoryMetadataStore(tree), [BookieState.WRITABLE], [1])
        starting = asyncio.create_task(announced.start())
        await asyncio.sleep(0.02)
        assert not starting.done() and tree.children("bookies/writable") == []
        other.expire()
        async with asyncio.timeout(10):
            await starting
        assert tree.children("bookies/writable") == ["b1"]
        await announced.stop()

    asyncio.run(main())


@with_store
async def test_cookie_of_an_earlier_version_is_read(
    config: BookieConfig, store: MemoryMetadataStore
) -> None:
    cookie = await format_new(config, store)
    node = await store.get("bookies/cookies/b1")
    names = {"journal_directory", "ledger_directories", "cluster_id", "bookie_id", "incarnation"}
    assert set(msgspec.json.decode(node.value)) == names, "as it was before starts were counted"
    known, version = await check_identity(cookie, store)
    assert (known.start, known.is_confirmed, known.places) == (None, True, ())
    assert version == node.version, "it was read, and not written"
