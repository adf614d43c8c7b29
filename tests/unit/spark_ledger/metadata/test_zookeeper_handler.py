"""kazoo's threads: sockets are looked at as kazoo does it, and answers run in the thread that has
read them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest
from kazoo.handlers.utils import selector_select

from spark_ledger.metadata.zookeeper.handler import PollingHandler

Prepare = Callable[[socket.socket, socket.socket], object]


def _fill(mine: socket.socket, _: socket.socket) -> None:
    mine.setblocking(False)
    try:
        while True:
            mine.send(b"x" * 4096)
    except BlockingIOError:
        return


@pytest.mark.parametrize(
    "prepare",
    [
        lambda mine, other: None,
        lambda mine, other: other.send(b"x"),
        lambda mine, other: other.close(),
        lambda mine, other: other.shutdown(socket.SHUT_WR),
        lambda mine, other: mine.shutdown(socket.SHUT_RDWR),
        _fill,
    ],
    ids=["nothing", "sent", "closed", "half closed", "shut down", "full"],
)
@pytest.mark.parametrize("asks", ["reads", "writes", "reads one of two"])
def test_sockets_that_are_ready_are_those_that_kazoo_finds(prepare: Prepare, asks: str) -> None:
    mine, other = socket.socketpair()
    quiet, far = socket.socketpair()
    with mine, other, quiet, far:
        prepare(mine, other)
        readers = {"reads": [mine], "writes": [], "reads one of two": [quiet, mine]}[asks]
        writers = [mine] if asks == "writes" else []
        found = PollingHandler().select(readers, writers, [], 0.0)
        assert found == selector_select(readers, writers, [], 0.0)


def test_wait_for_a_socket_ends_when_it_is_over_or_something_came() -> None:
    mine, other = socket.socketpair()
    with mine, other:
        handler = PollingHandler()
        assert handler.select([mine], [], [], 0.001) == ([], [], [])
        threading.Timer(0.01, other.send, [b"x"]).start()
        assert handler.select([mine], [], [], None) == ([mine], [], [])


def test_socket_that_was_closed_is_no_socket() -> None:
    mine, other = socket.socketpair()
    mine.close()
    with other, pytest.raises(ValueError, match="file descriptor"):
        PollingHandler().select([mine], [], [], 0.0)


def test_answer_is_handed_on_by_the_thread_that_has_it() -> None:
    handler = PollingHandler()
    handler.start()
    try:
        result = handler.async_result()
        threads: list[threading.Thread] = []
        result.rawlink(lambda _: threads.append(threading.current_thread()))
        result.set(b"answer")
        assert threads == [threading.current_thread()]
        late: list[bytes] = []
        result.rawlink(lambda found: late.append(found.value))
        assert late == [b"answer"]
    finally:
        handler.stop()


def test_what_fails_with_an_answer_is_logged_and_ends_no_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handler = PollingHandler()
    handler.start()
    try:
        result = handler.async_result()

        def failing(_: object) -> None:
            raise RuntimeError("a bug")

        result.rawlink(failing)
        result.set(None)
    finally:
        handler.stop()
    assert "a bug" in caplog.text


@pytest.mark.parametrize(
    ("timeout_s", "waits_ms"), [(None, None), (0.0, 0), (0.0001, 1), (2.5, 2500), (3, 3000)]
)
def test_wait_for_a_socket_is_as_long_as_was_said(
    timeout_s: float | None, waits_ms: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[int | None] = []

    class Poll:
        def register(self, *_: object) -> None:
            pass

        def poll(self, timeout_ms: int | None) -> list[tuple[int, int]]:
            waited.append(timeout_ms)
            return []

    monkeypatch.setattr("select.poll", Poll)
    assert PollingHandler().select([], [], [], timeout_s) == ([], [], [])
    assert waited == [waits_ms]
