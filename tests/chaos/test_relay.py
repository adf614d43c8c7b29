"""Each fault of a link does to bytes and connections what it says, and heals."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.chaos.relay import DOWN, UP, Relays

WAIT_S = 10.0
QUIET_S = 0.2


class Echo:
    """A server that sends back what it gets, and counts it."""

    def __init__(self) -> None:
        self.received = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed: the end
            while True:
                connection, _ = self._server.accept()
                self._sockets.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            while data := connection.recv(65536):
                self.received += len(data)
                connection.sendall(data)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for connection in self._sockets:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def relays(echo: Echo) -> Iterator[Relays]:
    with Relays() as made:
        made.add("link", lambda: echo.port)
        yield made


def connect(relays: Relays) -> socket.socket:
    return socket.create_connection(("127.0.0.1", relays.links["link"].port), timeout=WAIT_S)


def silent(connection: socket.socket) -> bool:
    """Whether nothing comes for a while; the connection stays."""
    connection.settimeout(QUIET_S)
    try:
        data = connection.recv(10)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(WAIT_S)
    assert data, "the connection has ended"
    return False


def receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        assert piece, "the connection has ended"
        data += piece
    return data


def is_reset(connection: socket.socket) -> bool:
    try:
        return connection.recv(10) == b""
    except ConnectionError:
        return True


def is_refused(relays: Relays) -> bool:
    """Whether a new connection is reset, at once or as soon as it stands."""
    try:
        with connect(relays) as connection:
            return is_reset(connection)
    except ConnectionError:
        return True


def until(what: str, probe: object) -> None:
    assert callable(probe)
    deadline = time.monotonic() + WAIT_S
    while not probe():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_healthy_link_passes_everything_in_order(relays: Relays) -> None:
    with connect(relays) as connection:
        data = bytes(range(256)) * 4000
        sender = threading.Thread(target=connection.sendall, args=(data,))
        sender.start()
        assert receive(connection, len(data)) == data
        sender.join()


def test_cut_resets_connections_and_refuses_new_ones(relays: Relays) -> None:
    with connect(relays) as connection:
        connection.sendall(b"one")
        assert receive(connection, 3) == b"one"
        relays.cut(["link"])
        assert is_reset(connection)
    assert is_refused(relays)
    relays.heal(["link"])
    with connect(relays) as connection:
        connection.sendall(b"two")
        assert receive(connection, 3) == b"two"


def test_held_bytes_arrive_later_on_the_same_connection(relays: Relays, echo: Echo) -> None:
    with connect(relays) as connection:
        connection.sendall(b"one")
        assert receive(connection, 3) == b"one"
        relays.hold(["link"])
        connection.sendall(b"two")
        assert silent(connection)
        assert echo.received == 3
        relays.heal(["link"])
        assert receive(connection, 3) == b"two"


def test_hold_of_one_direction_lets_the_other_pass(relays: Relays, echo: Echo) -> None:
    with connect(relays) as connection:
        relays.hold(["link"], (DOWN,))
        connection.sendall(b"one")
        until("the request arrives", lambda: echo.received == 3)
        assert silent(connection)
        relays.heal(["link"])
        assert receive(connection, 3) == b"one"
        relays.hold(["link"], (UP,))
        connection.sendall(b"two")
        assert silent(connection)
        assert echo.received == 3


def test_dropped_bytes_never_arrive_and_healing_ends_the_connection(
    relays: Relays, echo: Echo
) -> None:
    with connect(relays) as connection:
        connection.sendall(b"one")
        assert receive(connection, 3) == b"one"
        relays.drop(["link"], (DOWN,))
        connection.sendall(b"two")
        until("the request arrives", lambda: echo.received == 6)
        assert silent(connection)
        relays.heal(["link"])
        assert is_reset(connection)


def test_end_of_a_dropped_server_is_not_passed_on(relays: Relays, echo: Echo) -> None:
    with connect(relays) as connection:
        connection.sendall(b"one")
        assert receive(connection, 3) == b"one"
        relays.drop(["link"])
        echo.close()
        assert silent(connection)
        relays.heal(["link"])
        assert is_reset(connection)


def test_delay_and_throttle_pass_everything_later(relays: Relays) -> None:
    with connect(relays) as connection:
        for change in ({"delay_s": 0.1}, {"bytes_per_s": 30.0}):
            relays.slow(["link"], **change)
            began = time.monotonic()
            connection.sendall(b"one")
            assert receive(connection, 3) == b"one"
            assert time.monotonic() - began >= 0.15  # each way
            relays.heal(["link"])
        assert relays.links["link"].is_healthy


def test_unreachable_server_ends_the_connection(relays: Relays, echo: Echo) -> None:
    echo.close()
    assert is_refused(relays)
