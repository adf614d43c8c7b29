"""What importing the wire sets for a process: the environment of gRPC, sizes, kept memory."""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys
from typing import Any

import pytest

from spark_ledger.limits import MIB
from spark_ledger.limits.entries import MESSAGE_BYTES_MAX
from spark_ledger.wire import allocator, grpc_environment
from spark_ledger.wire.options import transfer_options

PRINT_SETTINGS = (
    "import os; from spark_ledger.wire import grpc_environment; "
    "print(os.environ['GRPC_ENABLE_FORK_SUPPORT'], os.environ['GRPC_EXPERIMENTS'])"
)


def settings_with(**environment: str) -> str:
    """What a new process has after the import."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    run = subprocess.run(
        [sys.executable, "-c", PRINT_SETTINGS],
        env={**inherited, **environment},
        check=True,
        capture_output=True,
        text=True,
    )
    return run.stdout.strip()


def test_grpc_runs_without_fork_handlers_and_event_engine() -> None:
    assert settings_with() == (
        "0 -event_engine_client,-event_engine_listener,-event_engine_callback_cq"
    )
    assert grpc_environment.__doc__


def test_environment_set_by_the_user_is_kept() -> None:
    assert settings_with(GRPC_ENABLE_FORK_SUPPORT="1", GRPC_EXPERIMENTS="") == "1"


def test_both_sides_take_the_largest_message() -> None:
    options = dict(transfer_options())
    assert options["grpc.max_send_message_length"] == MESSAGE_BYTES_MAX
    assert options["grpc.max_receive_message_length"] == MESSAGE_BYTES_MAX
    assert options["grpc.http2.max_frame_size"] == options["grpc.http2.write_buffer_size"] == MIB
    assert options["grpc.http2.lookahead_bytes"] == 8 * MIB
    assert options["grpc.http2.bdp_probe"] == 0
    assert len(options) == len(transfer_options()) == 6, "none is there twice"
    assert dict(transfer_options(lookahead_bytes=5))["grpc.http2.lookahead_bytes"] == 5


class CLibrary:
    """Stands for the C library; ``mallopt`` answers 1 for yes."""

    def __init__(self, answer: int) -> None:
        self.asked: list[tuple[int, int]] = []
        self._answer = answer

    @property
    def mallopt(self) -> Any:
        def call(parameter: int, value: int) -> int:
            self.asked.append((parameter, value))
            return self._answer

        return call


def use(monkeypatch: pytest.MonkeyPatch, library: object) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: library)


def test_freed_memory_is_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """mallopt's parameters: -3 is the mapping threshold, -1 the bytes kept, -2 the step."""
    caplog.set_level(logging.INFO)
    library = CLibrary(1)
    use(monkeypatch, library)
    allocator.keep_freed_memory(64 * MIB)
    assert library.asked == [(-3, 8 * MIB), (-1, 64 * MIB), (-2, 8 * MIB)]
    assert not caplog.messages


THREADS = """
import ctypes, threading
from spark_ledger.wire.allocator import share_heaps

library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
{settings}
together = threading.Barrier(6)
def use():
    together.wait()
    library.malloc(ctypes.c_size_t(1000))
    together.wait()
threads = [threading.Thread(target=use) for _number in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
library.malloc_stats()
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_stats"), reason="not glibc")
def test_threads_of_a_process_that_shares_heaps_have_two() -> None:
    def heaps(settings: str) -> int:
        command = [sys.executable, "-c", THREADS.format(settings=settings)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return done.stderr.count("Arena ")

    assert heaps("share_heaps()") == 2
    assert heaps("") > 2


def test_a_refused_parameter_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    use(monkeypatch, CLibrary(0))
    allocator.keep_freed_memory(5)
    assert caplog.messages == [
        f"mallopt({parameter}, {value}) was refused"
        for parameter, value in ((-3, 8 * MIB), (-1, 5), (-2, 8 * MIB))
    ]


def test_keep_freed_memory_without_mallopt_does_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    use(monkeypatch, object())
    allocator.keep_freed_memory(5)
    assert caplog.messages == ["this C library has no mallopt: large messages may cost page faults"]


def test_the_c_library_of_this_machine_is_asked() -> None:
    """On any C library the call must not fail."""
    allocator.keep_freed_memory(64 * MIB)
