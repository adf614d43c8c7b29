"""Who is hung up on for what it holds, who gives way, and who is left alone."""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from bookie_server.service.calls import CallLimits
from bookie_server.service.guard import client_watch, strangers
from bookie_server.service.guard.client_watch import ClientWatch
from bookie_server.service.guard.connections import Connections
from bookie_server.service.guard.hanging_up import HangUp, Why
from bookie_server.service.guard.sockets import Received, Sockets, open_file_count
from spark_ledger.limits import MIB
from spark_ledger.limits.bookie import BOOKIE_IDLE_S


class Kernel(Sockets):
    """What it says about the connections."""

    def __init__(self) -> None:
        super().__init__(lambda: ())
        self.bytes: dict[str, int] = {}
        self.muted: set[str] = set()

    def received(self, peers: Iterable[str]) -> dict[str, Received]:
        return {
            peer: Received(self.bytes[peer], frozenset({hash(peer)}))
            for peer in peers
            if peer in self.bytes
        }

    def mute(self, peers: Iterable[str]) -> None:
        self.muted.update(peers)

    def unmute(self, peers: Iterable[str]) -> None:
        self.muted.difference_update(peers)

    def of_port(self, _port: int) -> list[str]:
        return list(self.bytes)


class Ended(HangUp):
    """Whom the watch has hung up on."""

    def __init__(self) -> None:
        super().__init__(Kernel(), Counter())
        self.by: dict[str, Why] = {}

    def __call__(self, peer: str, why: Why) -> None:
        self.by[peer] = why


@dataclass
class Stream:
    peer: str
    has_waited_s: float
    is_known: bool = True


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.kernel = Kernel()
        self.ended = Ended()
        self.connections = Connections(lambda: self.now)
        self.limits = CallLimits(self.ended, Counter())
        self.streams: list[Stream] = []
        self.files = 0
        self.watch = ClientWatch(
            self.kernel,
            self.ended,
            self.connections,
            self.limits,
            lambda: self.streams,
            files=lambda: self.files,
        )

    def half(self, peer: str, mib: int, *, waited_s: float = 1.0) -> Stream:
        self.kernel.bytes[peer] = mib * MIB
        self.streams.append(Stream(peer, waited_s))
        return self.streams[-1]


def test_parts_of_messages_are_kept_until_they_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        world = World()
        for number in range(4):
            world.half(f"small {number}", 15)
        for _look in range(3):
            await world.watch.look()
        assert not world.ended.by
        world.half("large", 16)
        world.half("waits its turn", 40, waited_s=float("-inf"))
        for _look in range(3):
            await world.watch.look()
        assert world.ended.by == {"large": Why.UNFINISHED}, "the rest has room then"

    monkeypatch.setattr(client_watch, "BOOKIE_STALLED_MESSAGE_S", 0.0)
    asyncio.run(main())


def test_client_that_goes_on_sending_is_not_ended_for_those_who_have_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        world = World()
        world.half("slow", 60, waited_s=3.0)
        world.half("stopped", 10, waited_s=3.0)
        for _look in range(20):
            world.kernel.bytes["slow"] += 1000
            await world.watch.look()
            await asyncio.sleep(0.005)
        assert world.ended.by == {"stopped": Why.UNFINISHED}
        world.half("another", 10, waited_s=3.0)
        world.streams[0].has_waited_s = 6.0  # but not for ever
        world.kernel.bytes["slow"] += 1000
        await world.watch.look()
        assert "slow" in world.ended.by

    monkeypatch.setattr(client_watch, "BOOKIE_STALLED_MESSAGE_S", 0.05)
    asyncio.run(main())


def test_message_that_arrives_makes_the_next_a_new_one() -> None:
    async def main() -> None:
        world = World()
        streams = [world.half(f"client {number}", 15) for number in range(6)]
        await world.watch.look()
        await asyncio.sleep(0.3)
        for stream in streams:
            stream.has_waited_s = 0.01
        await world.watch.look()
        assert not world.ended.by

    asyncio.run(main())


def test_many_streams_are_looked_at_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        world = World()
        for number in range(9):
            world.half(f"client {number}", 10)
        await world.watch.look()
        assert len(world.watch._parts) == 2
        for _look in range(12):
            await world.watch.look()
        assert len(world.ended.by) == 3, "those that were ended count no more"

    monkeypatch.setattr(client_watch, "BOOKIE_STALLED_MESSAGE_S", 0.0)
    monkeypatch.setattr(client_watch, "BOOKIE_CONNECTIONS_LOOKED_AT", 2)
    asyncio.run(main())


@pytest.mark.parametrize("is_known", [True, False])
def test_late_request_of_a_client_whose_appends_wait_is_no_offence(
    monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """What it has sent is held because it is not read."""

    async def main() -> None:
        world = World()
        world.half("appends", 8, waited_s=float("-inf")).is_known = is_known
        world.kernel.bytes.update({"long": 2 * MIB, "slow": 1000})

        async def receive(peer: str) -> None:
            with world.limits.receiving(peer):
                await asyncio.Event().wait()

        calls = [asyncio.ensure_future(receive(peer)) for peer in world.kernel.bytes]
        await asyncio.sleep(0)
        await world.watch.look()
        assert not world.ended.by, "a request has a moment to arrive"
        await asyncio.sleep(0.03)
        await world.watch.look()
        assert world.kernel.muted == {"long"} and not world.ended.by
        monkeypatch.setattr(strangers, "BOOKIE_UNHEARD_S", 0.0)
        await world.watch.look()
        for call in calls:
            call.cancel()
        assert world.ended.by == {"long": Why.LONG}

    asyncio.run(main())


def test_halves_of_strangers_are_muted_and_not_ended_before_their_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever is ended connects and sends again: that is the attack."""

    async def main() -> None:
        world = World()
        for number in range(20):
            world.half(f"half {number}", 15).is_known = False
        world.half("writer", 3)
        for _look in range(5):
            await world.watch.look()
        assert not world.ended.by
        assert world.kernel.muted < {f"half {number}" for number in range(20)}
        assert len(world.kernel.muted) == 16, "a few go on, for they might be honest"
        stored = int(min(world.kernel.muted).removeprefix("half "))
        world.streams[stored].is_known = True  # its message became whole
        world.kernel.bytes[f"half {stored}"] = 0
        monkeypatch.setattr(strangers, "BOOKIE_UNHEARD_S", 0.0)
        monkeypatch.setattr(strangers, "BOOKIE_RECEIVE_S", 0.0)
        await world.watch.look()
        assert len(world.ended.by) >= 15 and set(world.ended.by.values()) == {Why.UNFINISHED}
        assert f"half {stored}" not in world.kernel.muted

    monkeypatch.setattr(client_watch, "BOOKIE_STALLED_MESSAGE_S", 0.0)
    asyncio.run(main())


def test_strangers_that_wait_until_they_are_read_are_not_muted() -> None:
    """What they have sent is held because the bookie does not take it: they cannot do better."""

    async def main() -> None:
        world = World()
        for number in range(20):
            world.half(f"new {number}", 15, waited_s=float("-inf")).is_known = False
        world.half("sends", 15, waited_s=0.0).is_known = False
        world.half("sends too", 15, waited_s=0.0).is_known = False
        for _look in range(5):
            await world.watch.look()
        assert world.watch._strangers.peers == {"sends", "sends too"}
        assert not (world.kernel.muted or world.ended.by)

    asyncio.run(main())


def test_stranger_is_muted_until_it_has_stored_something_and_not_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also while others are looked at; and then whatever it sends next."""

    async def main() -> None:
        world = World()
        for number in range(9):
            world.half(f"half {number}", 15).is_known = False
        for _look in range(9):
            await world.watch.look()
        muted = set(world.kernel.muted)
        assert 5 <= len(muted) < 9
        world.streams[int(min(muted).removeprefix("half "))].is_known = True
        await world.watch.look()
        assert world.kernel.muted == muted - {min(muted)}
        await world.watch.look()
        assert world.kernel.muted == muted - {min(muted)} and not world.ended.by

    monkeypatch.setattr(client_watch, "BOOKIE_CONNECTIONS_LOOKED_AT", 2)
    asyncio.run(main())


def test_part_of_a_message_goes_with_its_connection() -> None:
    """And keeps nobody from being looked at."""

    async def main() -> None:
        world = World()
        for number in range(4):
            world.half(f"stopped {number}", 15)
        await world.watch.look()
        for number in range(4):
            del world.kernel.bytes[f"stopped {number}"]
        for number in range(4):
            world.half(f"another {number}", 15)
        for _look in range(2):
            await world.watch.look()
        assert set(world.watch._parts) == {f"another {number}" for number in range(4)}
        assert not world.ended.by

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_watch, "BOOKIE_STALLED_MESSAGE_S", 0.0)
        asyncio.run(main())


def test_longest_idle_connections_give_way_before_there_is_no_room() -> None:
    async def main() -> None:
        world = World()
        world.kernel.bytes = {f"client {number}": 0 for number in range(32)}
        world.files = 30
        await world.watch.make_room(3181, 32)
        assert not world.ended.by, "there is room for two"
        with world.connections.call("client 0"):
            for number in (5, 3, 8):
                world.now = float(number)
                with world.connections.call(f"client {number}"):
                    pass
            world.now = 9.5
            world.files = 32
            await world.watch.make_room(3181, 32)
            assert world.ended.by == {"client 5": Why.IDLE, "client 3": Why.IDLE}
            world.now, world.kernel.bytes = 10.5, {"client 0": 0, "client 1": 0, "client 8": 0}
            world.watch._looked_at_all = float("-inf")
            await world.watch.make_room(3181, 2)
            assert set(world.ended.by) == {"client 5", "client 3", "client 1", "client 8"}

    asyncio.run(main())


@pytest.mark.parametrize("can_count", [True, False])
@pytest.mark.parametrize("idle_for", [0.9, 1.1])
def test_connection_that_was_just_in_use_does_not_give_way(
    idle_for: float, can_count: bool
) -> None:
    """Its client is about to ask for more: it would come again at once, and another one go. Where
    descriptors cannot be counted, for there is none left, there is no room."""

    def files() -> int:
        if can_count:
            return 32
        raise OSError(errno.EMFILE, "Too many open files")

    async def main() -> None:
        world = World()
        world.kernel.bytes = {f"client {number}": 0 for number in range(32)}
        for peer in world.kernel.bytes:
            with world.connections.call(peer):
                pass
        world.now = idle_for * BOOKIE_IDLE_S
        world.watch._files = files
        await world.watch.make_room(3181, 32)
        assert len(world.ended.by) == (2 if idle_for > 1 else 0)

    asyncio.run(main())


def test_connections_that_are_gone_are_forgotten() -> None:
    async def main() -> None:
        world = World()
        for number in range(1_025):
            with world.connections.call(f"client {number}"):
                world.connections.given(f"client {number}", 10)
        world.kernel.bytes = {"client 7": 0}
        await world.watch.make_room(3181, 10_000)
        assert len(world.connections) == 1

    asyncio.run(main())


def test_open_files_are_counted() -> None:
    before = open_file_count()
    with open("/dev/null") as _file:
        assert open_file_count() == before + 1


def test_watch_goes_on_where_there_is_no_descriptor_to_count_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As before Linux 6.2. It would never make room for a client again."""
    monkeypatch.setattr(client_watch, "BOOKIE_CONNECTION_IDLE_S", 0.001)
    monkeypatch.setattr(client_watch, "BOOKIE_CONNECTIONS_LOOK_S", 0.0)

    async def main() -> None:
        world = World()
        asked = 0

        def files() -> int:
            nonlocal asked
            asked += 1
            if asked <= 2:
                raise OSError(errno.EMFILE, "Too many open files")
            return 0

        world.watch = ClientWatch(
            world.kernel,
            world.ended,
            world.connections,
            world.limits,
            lambda: world.streams,
            files=files,
        )
        world.watch.start(1, 100)
        async with asyncio.timeout(5):
            while asked < 5:
                await asyncio.sleep(0.001)
        world.watch.stop()

    asyncio.run(main())


NOTHING_LEFT = [
    OSError(errno.EMFILE, "Too many open files"),
    RuntimeError("can't start new thread"),
]


@pytest.mark.parametrize("error", NOTHING_LEFT)
def test_watch_whose_look_fails_once_looks_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """It is there for the time in which the process has nothing left."""
    monkeypatch.setattr(client_watch, "BOOKIE_CONNECTION_LOOK_S", 0.001)
    monkeypatch.setattr(client_watch, "BOOKIE_STALLED_MESSAGE_S", 0.0)

    async def main() -> None:
        world = World()
        world.half("stopped", 60)
        world.half("another", 10)
        broken = iter([True, True])
        received = world.kernel.received

        def fails(peers: Iterable[str]) -> dict[str, Received]:
            if next(broken, False):
                raise error
            return received(peers)

        monkeypatch.setattr(world.kernel, "received", fails)
        world.watch.start(1, 1000)
        async with asyncio.timeout(10):
            while not world.ended.by:
                await asyncio.sleep(0.001)
        world.watch.stop()
        assert world.ended.by == {"stopped": Why.UNFINISHED}

    asyncio.run(main())


def test_connection_that_had_many_calls_is_measured_before_it_sends_a_half() -> None:
    """Its calls were granted more than they took, and it has no call that is late then."""

    async def main() -> None:
        world = World()
        world.kernel.bytes["busy"] = 60_000
        for _call in range(1_000):
            with world.connections.call("busy"):
                pass
        await world.watch.look()
        assert not world.connections.unmeasured and not world.ended.by
        world.half("busy", 70)
        world.half("small", 2)
        for _look in range(3):
            await world.watch.look()
        assert world.ended.by == {"busy": Why.UNFINISHED}
        with world.connections.call("gone"):
            world.connections.given("gone", 1 * MIB)
        await world.watch.look()
        assert not world.connections.unmeasured, "nobody asks for it again and again"

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(client_watch, "BOOKIE_STALLED_MESSAGE_S", 0.0)
        asyncio.run(main())
