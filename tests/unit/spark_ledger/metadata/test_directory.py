"""The live view of the bookies, over the memory store, also when the store cannot be reached."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from spark_ledger.errors import ConfigurationError, MetadataUnavailableError
from spark_ledger.limits.metadata import DIRECTORY_JITTER_S, DIRECTORY_REFRESH_S
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.cluster import CLUSTER_PATH, ensure_cluster_node, set_placement
from spark_ledger.metadata.codec import encode_bookie
from spark_ledger.metadata.directory import BookieDirectory
from spark_ledger.metadata.memory import Fault, MemoryTree, Outcome
from spark_ledger.types import BookieId, BookieInfo, BookieState, PlacementPolicy, Versioned
from tests.unit.cut_off import cut_off, cut_off_at_each_wait
from tests.unit.virtual_time import run_in_virtual_time

pytestmark = pytest.mark.leaves_open(
    "BookieRegistry._keep", reason="the process of a bookie goes on"
)


def bookie(name: str, address: str = "127.0.0.1:1", state: str = "writable") -> BookieInfo:
    return BookieInfo(BookieId(name), address, BookieState(state))


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def test_directory_without_changes_reads_nothing() -> None:
    async def main() -> None:
        tree = MemoryTree()
        asked: list[str] = []

        def interpose(name: str, _path: str) -> Fault:
            asked.append(name)
            return Fault()

        directory = BookieDirectory(BookieRegistry(tree.open_session(interpose=interpose)))
        await directory.start()
        await BookieRegistry(tree.open_session()).register(bookie("b"))
        await eventually(lambda: directory.all() == [bookie("b")])
        await asyncio.sleep(0.02)
        before = len(asked)
        await asyncio.sleep(0.05)
        assert len(asked) == before
        await directory.close()

    asyncio.run(main())


def test_directory_follows_and_keeps_the_last_address() -> None:
    async def main() -> None:
        tree = MemoryTree()
        first, second = BookieRegistry(tree.open_session()), BookieRegistry(tree.open_session())
        await first.register(bookie("a", "127.0.0.1:1"))
        directory = BookieDirectory(BookieRegistry(tree.open_session()))
        await directory.start()
        assert directory.writable() == [bookie("a", "127.0.0.1:1")]
        assert directory.address(BookieId("b")) is None
        await second.register(bookie("b", "127.0.0.1:2"))
        await eventually(lambda: len(directory.writable()) == 2)
        await second.register(bookie("b", "127.0.0.1:2", "readonly"))
        await eventually(lambda: len(directory.writable()) == 1)
        assert [info.bookie_id for info in directory.all()] == ["a", "b"]
        await first.deregister()
        await eventually(lambda: len(directory.all()) == 1)
        assert directory.get(BookieId("a")) is None
        assert directory.address(BookieId("a")) == "127.0.0.1:1"
        await directory.close()

    asyncio.run(main())


def test_rack_of_a_bookie_that_is_gone_is_known_still_and_those_here_are_in_order() -> None:
    """Its copies count where they are until they are made again, whoever comes and goes since."""

    async def main() -> None:
        tree = MemoryTree()
        first, others = BookieRegistry(tree.open_session()), list[BookieRegistry]()
        await first.register(replace(bookie("a"), rack="/r1"))
        directory = BookieDirectory(BookieRegistry(tree.open_session()))
        await directory.start()
        await first.deregister()
        for info in (bookie("c"), bookie("b", state="readonly")):
            others.append(BookieRegistry(tree.open_session()))
            await others[-1].register(info)
        await directory.refresh()
        assert [info.bookie_id for info in directory.all()] == ["b", "c"]
        assert directory.rack(BookieId("a")) == "/r1"
        await first.register(replace(bookie("a", "moved:1"), rack="/r2"))
        await directory.refresh()
        assert directory.rack(BookieId("a")) == "/r2"
        assert directory.address(BookieId("a")) == "moved:1"
        await directory.close()

    run_in_virtual_time(main())


def test_directory_outlives_an_unreachable_store() -> None:
    async def main() -> None:
        tree = MemoryTree()
        down = [False]
        store = tree.open_session(
            interpose=lambda _n, _p: Fault(Outcome.UNAVAILABLE if down[0] else Outcome.NORMAL)
        )
        directory = BookieDirectory(BookieRegistry(store))
        await directory.start()
        down[0] = True
        writer = BookieRegistry(tree.open_session())
        await writer.register(bookie("a"))
        await asyncio.sleep(0.02)
        assert directory.all() == []
        down[0] = False
        store.expire()  # back: every watch reports
        await eventually(lambda: directory.all() == [bookie("a")])
        await directory.close()

    asyncio.run(main())


class Requests:
    """Counts what clients ask of a tree, beside what they see."""

    def __init__(self, tree: MemoryTree) -> None:
        self.tree = tree
        self.paths: list[str] = []

    async def client(self) -> BookieDirectory:
        def interpose(_name: str, path: str) -> Fault:
            self.paths.append(path)
            return Fault()

        directory = BookieDirectory(BookieRegistry(self.tree.open_session(interpose=interpose)))
        await directory.start()
        return directory


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients do not wait before they read: events in the tests follow one another closely."""
    monkeypatch.setattr("spark_ledger.metadata.directory.DIRECTORY_JITTER_S", 0.0)


@pytest.mark.usefixtures("at_once")
def test_change_of_one_bookie_is_read_by_each_client_alone() -> None:
    """300 bookies and 20 clients read 5,980 registrations when one left."""

    async def main() -> None:
        tree = MemoryTree()
        registries = [BookieRegistry(tree.open_session()) for _ in range(60)]
        for number, registry in enumerate(registries):
            await registry.register(bookie(f"b{number:02d}"))
        requests = Requests(tree)
        clients = [await requests.client() for _ in range(10)]

        async def cost_of(change: Awaitable[None], bookies: int) -> int:
            await asyncio.sleep(0.02)
            requests.paths.clear()
            await change
            await eventually(lambda: all(len(client.all()) == bookies for client in clients))
            await asyncio.sleep(0.02)
            return len(requests.paths)

        listings = len(BookieState)
        assert await cost_of(registries[0].deregister(), 59) <= 10 * listings
        assert await cost_of(registries[0].register(bookie("b00")), 60) <= 10 * (listings + 1)
        for client in clients:
            await client.close()

    asyncio.run(main())


def test_clients_spread_what_they_read_after_a_change() -> None:
    async def main() -> None:
        tree = MemoryTree()
        loop = asyncio.get_running_loop()
        at: list[float] = []

        def interpose(_name: str, _path: str) -> Fault:
            at.append(loop.time())
            return Fault()

        draw = random.Random(1)
        clients = [
            BookieDirectory(BookieRegistry(tree.open_session(interpose=interpose)), draw)
            for _ in range(20)
        ]
        for client in clients:
            await client.start()
        at.clear()
        await BookieRegistry(tree.open_session()).register(bookie("b"))
        await eventually(lambda: all(client.all() for client in clients))
        assert max(at) - min(at) > DIRECTORY_JITTER_S / 2
        for client in clients:
            await client.close()

    asyncio.run(main())


@pytest.mark.usefixtures("at_once")
def test_bookie_that_was_replaced_between_two_reads_is_read_again() -> None:
    """The names are the same; that their node was made anew, the count of changes says."""

    async def main() -> None:
        tree = MemoryTree()
        old, new = BookieRegistry(tree.open_session()), BookieRegistry(tree.open_session())
        other = BookieRegistry(tree.open_session())
        await old.register(bookie("b", "127.0.0.1:1"))
        await other.register(bookie("c"))
        requests = Requests(tree)
        client = await requests.client()
        async with client._lock:  # the view is being read while the bookie moves
            await old.deregister()
            await new.register(bookie("b", "127.0.0.1:2"))
            await asyncio.sleep(0.01)
        await eventually(lambda: client.address(BookieId("b")) == "127.0.0.1:2")
        await client.close()

    asyncio.run(main())


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("changes", [0, 1, 2, 5])
def test_bookies_of_a_store_that_counts_anew_are_all_read_again(changes: int) -> None:
    """A restored ZooKeeper has counted less, or as much, of the same names."""

    async def main() -> None:
        old, new = MemoryTree(), MemoryTree()
        for address, tree in (("127.0.0.1:1", old), ("127.0.0.1:2", new)):
            for name in "ab":
                await BookieRegistry(tree.open_session()).register(bookie(name, address))
        for _ in range(changes):
            passing = BookieRegistry(old.open_session())
            await passing.register(bookie("c"))
            await passing.deregister()
        directory = BookieDirectory(BookieRegistry(old.open_session()))
        await directory.refresh()
        directory._registry = BookieRegistry(new.open_session())
        await directory.refresh(all_again=changes == 0)  # nothing else tells these two apart
        assert [info.address for info in directory.all()] == 2 * ["127.0.0.1:2"]

    asyncio.run(main())


def test_refresh_of_all_reads_what_changed_without_a_notice() -> None:
    async def main() -> None:
        tree = MemoryTree()
        registry = BookieRegistry(tree.open_session())
        await registry.register(bookie("b"))
        client = await Requests(tree).client()
        await registry.register(replace(bookie("b"), free_bytes=17))
        await client.refresh()
        assert client.all()[0].free_bytes == 0
        await client.refresh(all_again=True)
        assert client.all()[0].free_bytes == 17
        await client.close()

    asyncio.run(main())


def test_periodic_looks_read_every_registration_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        tree = MemoryTree()
        for number in range(25):
            await BookieRegistry(tree.open_session()).register(bookie(f"b{number:02d}"))
        requests = Requests(tree)
        client = await requests.client()
        requests.paths.clear()
        monkeypatch.setattr("spark_ledger.metadata.directory.DIRECTORY_REFRESH_S", 0.001)
        client._changed.set()  # the first look with the short period
        await eventually(lambda: len(requests.paths) > 200)
        await client.close()
        registrations = [path for path in requests.paths if path.count("/") == 2]
        assert set(Counter(registrations[:50]).values()) == {2}, "each of them once in turn"
        listings = len(requests.paths) - len(registrations)
        assert len(registrations) / (listings / len(BookieState)) < 25 / 5

    asyncio.run(main())


@pytest.mark.usefixtures("at_once")
def test_registration_that_cannot_be_read_is_read_again_at_the_next_change() -> None:
    async def main() -> None:
        tree = MemoryTree()
        store = tree.open_session()
        await store.create("bookies/writable/a", b"{")
        client = await Requests(tree).client()
        assert client.all() == []
        await store.put("bookies/writable/a", encode_bookie(bookie("a")), 0)
        await client.refresh()
        assert client.all() == [bookie("a")]
        await client.close()

    asyncio.run(main())


def test_refresh_that_waited_for_a_failed_read_fails_without_another() -> None:
    async def main() -> None:
        tree, down, reads = MemoryTree(), [False], []

        def interpose(name: str, path: str) -> Fault:
            reads.append(path)
            return Fault(Outcome.UNAVAILABLE if down[0] else Outcome.NORMAL, delay_s=0.01)

        directory = BookieDirectory(BookieRegistry(tree.open_session(interpose=interpose)))
        await directory.start()
        reads.clear()
        down[0] = True
        found = await asyncio.gather(
            *(directory.refresh() for _ in range(3)), return_exceptions=True
        )
        assert [type(error) for error in found] == [MetadataUnavailableError] * 3
        assert "cannot be read" in str(found[2])
        assert len(reads) == 1
        with pytest.raises(MetadataUnavailableError):
            await directory.refresh()
        assert len(reads) == 2, "a later call tries for itself"
        await asyncio.gather(*(directory.refresh() for _ in range(3)), return_exceptions=True)
        assert len(reads) == 3, "each time"
        down[0] = False
        await asyncio.gather(*(directory.refresh() for _ in range(2)))
        assert len(reads) == 3 + 2 * len(BookieState)
        await directory.close()

    asyncio.run(main())


def test_list_that_cannot_be_read_for_another_reason_is_read_again_later() -> None:
    """As while another ZooKeeper answers: once the right one is back, the client follows again."""

    class Refused(BookieRegistry):
        is_refused = False

        async def names(self, state: BookieState) -> Versioned[list[BookieId]]:
            if self.is_refused:
                raise ConfigurationError("no longer holds the cluster")
            return await super().names(state)

    async def main() -> None:
        tree = MemoryTree()
        registry = Refused(tree.open_session())
        directory = BookieDirectory(registry)
        await directory.start()
        registry.is_refused = True
        await BookieRegistry(tree.open_session()).register(bookie("a"))
        await asyncio.sleep(1.0)
        registry.is_refused = False
        await BookieRegistry(tree.open_session()).register(bookie("b"))
        await asyncio.sleep(3 * DIRECTORY_REFRESH_S)
        assert directory.all() == [bookie("a"), bookie("b")]
        await directory.close()

    run_in_virtual_time(main())


@pytest.mark.usefixtures("at_once")
def test_change_that_could_not_be_read_is_read_the_next_time() -> None:
    """Whichever of the reads fails; the names may be the same before and after."""

    async def scenario(failing: int) -> bool:
        tree = MemoryTree()
        old, new = BookieRegistry(tree.open_session()), BookieRegistry(tree.open_session())
        await BookieRegistry(tree.open_session()).register(bookie("a"))
        await old.register(bookie("b", "127.0.0.1:1"))
        left = 0

        def interpose(_name: str, _path: str) -> Fault:
            nonlocal left
            left -= 1
            return Fault(Outcome.UNAVAILABLE if left == 0 else Outcome.NORMAL)

        directory = BookieDirectory(BookieRegistry(tree.open_session(interpose=interpose)))
        await directory.refresh()
        await old.deregister()
        await new.register(bookie("b", "127.0.0.1:2"))
        left = failing
        failed = False
        try:
            await directory.refresh()
        except MetadataUnavailableError:
            failed = True
        left = 0
        await directory.refresh()
        assert directory.address(BookieId("b")) == "127.0.0.1:2", f"read {failing} failed"
        assert [info.bookie_id for info in directory.all()] == ["a", "b"]
        return failed

    failing = 1
    while run_in_virtual_time(scenario(failing)):
        failing += 1
    assert failing > 3, "names of both states, and registrations"


@pytest.mark.usefixtures("at_once")
def test_refresh_that_is_left_at_any_moment_hides_no_change() -> None:
    """It had taken note of a change, and left before it had read it."""

    async def one(wait: int) -> bool:
        tree = MemoryTree()
        directory = BookieDirectory(BookieRegistry(tree.open_session()))
        await directory.start()
        other = BookieRegistry(tree.open_session())
        await other.register(bookie("a"))
        was_cut = await cut_off(directory.refresh(all_again=True), wait)
        await asyncio.sleep(5.0)
        assert directory.all() == [bookie("a")]
        changed = replace(bookie("a"), address="moved:1")
        await other.register(changed)
        await directory.refresh(all_again=True)
        assert directory.all() == [changed]
        await directory.close()
        await other.deregister()
        return was_cut

    async def main() -> None:
        await cut_off_at_each_wait(one)

    run_in_virtual_time(main())


@pytest.mark.parametrize("data", [b"{", b'{"format_version": 99}', None])
def test_policy_that_cannot_be_read_stays_as_it_was_and_the_bookies_are_read(
    data: bytes | None,
) -> None:
    async def main() -> None:
        tree = MemoryTree()
        store = tree.open_session()
        await ensure_cluster_node(store)
        directory = BookieDirectory(BookieRegistry(store))
        await directory.start()
        directory.policy = PlacementPolicy(min_racks=2)
        other = BookieRegistry(tree.open_session())
        await other.register(bookie("a"))
        if data is None:
            await store.delete(CLUSTER_PATH)
        else:
            await store.put(CLUSTER_PATH, data, (await store.get(CLUSTER_PATH)).version)
        await directory.refresh(all_again=True)
        assert directory.all() == [bookie("a")]
        assert directory.policy == PlacementPolicy(min_racks=2)
        await directory.close()
        await other.deregister()

    run_in_virtual_time(main())


def test_policy_is_seen_at_the_next_periodic_look() -> None:
    """Nobody watches it."""

    async def main() -> None:
        store = MemoryTree().open_session()
        await ensure_cluster_node(store)
        directory = BookieDirectory(BookieRegistry(store))
        await directory.start()
        await set_placement(store, PlacementPolicy(min_racks=2))
        await asyncio.sleep(1.5 * DIRECTORY_REFRESH_S)
        assert directory.policy == PlacementPolicy(min_racks=2)
        await directory.close()

    run_in_virtual_time(main())


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_bookies_that_are_read_in_several_parts_are_all_there(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_ledger.metadata.directory.METADATA_READS_IN_FLIGHT_MAX", 2)

    async def main() -> None:
        tree = MemoryTree()
        infos = [bookie(f"b{number}") for number in range(count)]
        for info in infos:
            await BookieRegistry(tree.open_session()).register(info)
        directory = BookieDirectory(BookieRegistry(tree.open_session()))
        await directory.start()
        assert directory.all() == infos
        await directory.refresh(all_again=True)
        assert directory.all() == infos
        await directory.close()

    run_in_virtual_time(main())
