"""Connections found by their peers' names, in a process that has many files open."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bookie_server.service.guard.sockets import KNOWN_S, Sockets

HOSTS = {"ipv4": "127.0.0.1", "ipv6": "::1", "of all": "::"}


class Pair:
    """A client's connection, and the bookie's end of it."""

    def __init__(self, host: str, client_port: int = 0) -> None:
        family, is_of_all = socket.AF_INET6 if ":" in host else socket.AF_INET, host == "::"
        with socket.create_server((host, 0), family=family, dualstack_ipv6=is_of_all) as listener:
            port = listener.getsockname()[1]
            host = "127.0.0.1" if is_of_all else host
            client_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self.client = socket.socket(client_family)
            self.client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.client.bind((host, client_port))
            self.client.connect((host, port))
            self.served, _address = listener.accept()
        port = self.client.getsockname()[1]
        self.peer = f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"

    def close(self) -> None:
        self.client.close()
        self.served.close()


def counts(sockets: Sockets, peers: list[str]) -> dict[str, int]:
    """The bytes that have arrived from each."""
    return {peer: found.byte_count for peer, found in sockets.received(peers).items()}


@pytest.fixture(params=HOSTS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    made = Pair(HOSTS[request.param])
    yield made
    made.close()


def test_what_has_arrived_is_known_by_peer(pair: Pair) -> None:
    pair.client.sendall(bytes(1000))
    assert len(pair.served.recv(1000, socket.MSG_WAITALL)) == 1000
    found = counts(Sockets(), [pair.peer, "ipv4:10.0.0.1:1", "unix:/nobody"])
    assert found == {pair.peer: 1000}


def test_next_connection_from_the_same_port_is_another_one() -> None:
    one = Pair("127.0.0.1")
    port = one.client.getsockname()[1]
    first = Sockets().received([one.peer])[one.peer].sockets
    assert Sockets().received([one.peer])[one.peer].sockets == first
    one.close()
    other = Pair("127.0.0.1", port)
    found = Sockets().received([other.peer])[other.peer].sockets
    assert other.peer == one.peer and len(found) == 1 and not found & first
    other.close()


@contextmanager
def two_of_one_name() -> Iterator[tuple[Pair, Pair]]:
    """One port of a client, connected to two of the bookie."""
    one = Pair("127.0.0.1")
    other = Pair("127.0.0.1", one.client.getsockname()[1])
    assert one.peer == other.peer
    try:
        yield one, other
    finally:
        one.close()
        other.close()


def test_client_that_connects_twice_from_one_port_is_looked_at_as_one() -> None:
    """gRPC gives both connections the same name, and does not say which is meant."""
    found = Sockets()
    with two_of_one_name() as pairs:
        peer = pairs[0].peer
        pairs[0].client.sendall(bytes(1000))
        pairs[1].client.sendall(bytes(10))
        assert pairs[0].served.recv(1000, socket.MSG_WAITALL)
        assert pairs[1].served.recv(10, socket.MSG_WAITALL)
        assert counts(found, [peer]) == {peer: 1010}
        found.mute([peer])
        for pair in pairs:
            pair.client.sendall(b"dropped, and sent again")
            pair.served.settimeout(0.05)
            with pytest.raises(TimeoutError):
                pair.served.recv(100)
        found.unmute([peer])
        for pair in pairs:
            pair.served.settimeout(30)
            assert pair.served.recv(100) == b"dropped, and sent again"
        assert found.hang_up([peer]) == [peer]
        for pair in pairs:
            pair.client.settimeout(30)
            assert pair.client.recv(10) == b""
        assert found.hang_up([peer]) == []


def test_connections_to_another_port_of_the_process_are_none_of_grpc() -> None:
    """An operator's one, to the admin port, may have the name of a client's."""
    found = Sockets()
    with two_of_one_name() as (served, other):
        found.port = served.served.getsockname()[1]
        other.client.sendall(bytes(10))
        assert other.served.recv(10, socket.MSG_WAITALL)
        assert counts(found, [served.peer]) == {served.peer: 0}
        assert found.hang_up([served.peer]) == [served.peer]
        other.client.sendall(b"goes on")
        assert other.served.recv(10) == b"goes on"


def test_second_connection_of_a_name_that_is_known_is_found_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, now = Sockets(), 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    one = Pair("127.0.0.1")
    assert counts(found, [one.peer]) == {one.peer: 0}
    other = Pair("127.0.0.1", one.client.getsockname()[1])
    other.client.sendall(bytes(10))
    assert other.served.recv(10, socket.MSG_WAITALL)
    now += KNOWN_S
    assert counts(found, [one.peer]) == {one.peer: 10}
    one.close()
    other.close()


def test_connection_that_has_two_numbers_counts_once(pair: Pair) -> None:
    """Another thread may have a copy of it in this moment, to look at it."""
    pair.client.sendall(bytes(1000))
    assert len(pair.served.recv(1000, socket.MSG_WAITALL)) == 1000
    with pair.served.dup():
        assert counts(Sockets(), [pair.peer]) == {pair.peer: 1000}


def test_connections_of_a_port_are_those_of_its_clients(pair: Pair) -> None:
    assert Sockets().of_port(pair.served.getsockname()[1]) == [pair.peer]


def test_connection_ends_and_its_descriptor_stays_with_its_owner(pair: Pair) -> None:
    found = Sockets()
    assert found.hang_up([pair.peer]) == [pair.peer]
    assert pair.client.recv(10) == b"" and pair.served.recv(10) == b""
    pair.served.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # it is open
    pair.client.close()
    pair.served.close()
    assert found.hang_up([pair.peer]) == []


def test_connection_that_was_ended_is_gone_though_its_owner_has_not_noticed(pair: Pair) -> None:
    """Its client may keep its own end open for as long as it likes."""
    found = Sockets()
    assert found.hang_up([pair.peer]) == [pair.peer]
    assert found.received([pair.peer]) == {}
    assert found.hang_up([pair.peer]) == []


def test_client_that_sends_no_more_is_ended_as_others(pair: Pair) -> None:
    pair.client.shutdown(socket.SHUT_WR)
    assert pair.served.recv(10) == b""
    assert Sockets().hang_up([pair.peer]) == [pair.peer]


def test_muted_connection_delivers_nothing_until_it_is_heard_again(pair: Pair) -> None:
    found = Sockets()
    found.mute([pair.peer, "ipv4:10.0.0.1:1"])
    pair.client.sendall(b"dropped, and sent again")
    pair.served.settimeout(0.05)
    with pytest.raises(TimeoutError):
        pair.served.recv(100)
    found.unmute([pair.peer])
    pair.served.settimeout(30)
    assert pair.served.recv(100) == b"dropped, and sent again"


def test_muted_connection_that_ends_says_so_to_its_client(pair: Pair) -> None:
    found = Sockets()
    found.mute([pair.peer])
    assert found.hang_up([pair.peer]) == [pair.peer]
    pair.client.settimeout(30)
    assert pair.client.recv(10) == b""


def test_number_that_was_given_again_does_not_end_another_connection(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is closed and given again after it was looked up, and before it is used."""
    other = Pair("127.0.0.1")
    found = Sockets()
    dup = os.dup

    def dup_late(descriptor: int) -> int:
        if descriptor == pair.served.fileno():
            os.dup2(other.served.fileno(), descriptor)
        return dup(descriptor)

    monkeypatch.setattr("os.dup", dup_late)
    assert found.hang_up([pair.peer]) == []
    other.client.settimeout(0.05)
    with pytest.raises(TimeoutError):
        other.client.recv(10)
    other.close()


def test_number_that_was_given_to_a_file_is_left_alone_and_nothing_stays_open(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bookie has hundreds of them, and opens and closes them all the time."""
    found = Sockets()
    with open("/dev/null") as file:
        dup, copies = os.dup, list[int]()

        def dup_late(descriptor: int) -> int:
            if descriptor == pair.served.fileno():
                os.dup2(file.fileno(), descriptor)
            copies.append(dup(descriptor))
            return copies[-1]

        monkeypatch.setattr("os.dup", dup_late)
        assert found.hang_up([pair.peer]) == []
        (copy,) = copies
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(copy)


def test_connections_that_are_gone_are_not_remembered(pair: Pair) -> None:
    """A bookie has met millions of them after some years."""
    found, port = Sockets(), pair.served.getsockname()[1]
    assert found.of_port(port) == [pair.peer]
    pair.close()
    assert found.of_port(port) == []
    assert pair.peer not in found._descriptors


def test_numbers_that_moved_are_found_again(pair: Pair) -> None:
    found = Sockets()
    assert counts(found, [pair.peer]) == {pair.peer: 0}
    moved = pair.served.dup()
    pair.served.close()
    assert counts(found, [pair.peer]) == {pair.peer: 0}
    moved.close()


def test_process_without_a_free_descriptor_looks_again_later(pair: Pair) -> None:
    fails = True

    def files() -> list[int]:
        if fails:
            raise OSError(24, "Too many open files")
        return [pair.served.fileno()]

    found = Sockets(files)
    assert found.hang_up([pair.peer]) == []
    fails = False
    assert found.hang_up([pair.peer]) == [pair.peer]


@pytest.mark.parametrize("fails", ["getsockopt", "shutdown", "setsockopt"])
def test_connection_that_closes_meanwhile_keeps_no_other_from_being_looked_at(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """Between finding it and asking for it the kernel may say anything of it."""
    other = Pair("127.0.0.1")
    found, gone = Sockets(), other.client.getsockname()[1]

    class Closing(socket.socket):
        """Of the other one, which closes in this moment."""

        def _closes(self, what: str) -> None:
            if what == fails and self.getpeername()[1] == gone:
                raise OSError(errno.ENOTCONN, "closed")

        def getsockopt(self, *of: Any) -> Any:
            self._closes("getsockopt")
            return super().getsockopt(*of)

        def setsockopt(self, *of: Any) -> None:
            self._closes("setsockopt")
            super().setsockopt(*of)

        def shutdown(self, how: int) -> None:
            self._closes("shutdown")
            super().shutdown(how)

    peers = [other.peer, pair.peer]
    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", Closing)
        assert pair.peer in found.received(peers)
        found.mute(peers)
        found.unmute(peers)
        assert pair.peer in found.hang_up(peers)
    other.close()
