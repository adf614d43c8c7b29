"""What a bookie tells its starter, where nothing can be written any more."""

from __future__ import annotations

import io
import json
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bookie_server import daemon_thread, process
from bookie_server.__main__ import main
from bookie_server.exit_codes import EXIT_FATAL, EXIT_REFUSED
from bookie_server.telling import Ready, end_output, say, tell_ready

READY = Ready("b", "127.0.0.1:1", "127.0.0.1:2", 7)


class Full:
    """A stream into a file on a disk that is full."""

    def __init__(self) -> None:
        self.text = io.TextIOWrapper(open("/dev/full", "wb"), line_buffering=True)  # noqa: SIM115
        self.was_given_up = False

    def end(self) -> None:
        """Find out whether the flush at the exit of Python would succeed, and close."""
        try:
            self.text.write("x\n")
        except OSError:
            say("", self.text)
        else:
            self.was_given_up = True
        self.text.close()


@contextmanager
def full_output(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Full]]:
    """The output and the errors of this process go to a full disk. (In the test itself: pytest
    sets both anew behind the fixtures.)"""
    made = {name: Full() for name in ("stdout", "stderr")}
    with monkeypatch.context() as patched:
        for name, stream in made.items():
            patched.setattr(sys, name, stream.text)
        yield made
    for stream in made.values():
        stream.end()


@contextmanager
def no_byte_more() -> Iterator[None]:
    """Files can be made and renamed, and nothing can be written, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_ready_file_on_a_full_disk_is_there_and_empty(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with no_byte_more():
        tell_ready(READY, tmp_path / "ready")
    assert [path.name for path in tmp_path.iterdir()] == ["ready"]
    assert (tmp_path / "ready").read_text() == "" and "stays empty" in caplog.text
    tell_ready(READY, tmp_path / "ready")
    assert json.loads((tmp_path / "ready").read_text()) == READY._asdict()


def test_ready_file_whose_directory_is_not_there_ends_the_start(tmp_path: Path) -> None:
    """Whoever waits for it would wait for ever."""
    with pytest.raises(FileNotFoundError, match="is not there"):
        tell_ready(READY, tmp_path / "is not there" / "ready")


@pytest.mark.parametrize("closed", [1, 2])
def test_exit_code_of_a_bookie_without_an_output_is_its_own(tmp_path: Path, closed: int) -> None:
    config = tmp_path / "bookie.toml"
    config.write_text(
        'metadata = "zk://h/l"\n[storage]\njournal_directory = "j"\nledger_directories = ["l"]\n'
    )
    command = [sys.executable, "-m", "bookie_server", "--config", str(config)]
    without = ["/bin/sh", "-c", f'exec "$@" {closed}>&-', "sh"]
    ended = subprocess.run([*without, *command], capture_output=True, check=False)
    assert ended.returncode == EXIT_REFUSED, ended.stderr


def test_end_of_an_output_that_was_never_there_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    end_output()


def test_output_on_a_full_disk_ends_nothing_and_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with full_output(monkeypatch) as full:
        tell_ready(READY, None)
    assert full["stdout"].was_given_up, "it would say much later that the bookie is ready"
    assert not full["stderr"].was_given_up, "the log goes on when there is space again"


def test_exit_code_of_a_bookie_whose_log_is_on_a_full_disk_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "bookie.toml"
    config.write_text(
        'metadata = "zk://h/l"\n[storage]\njournal_directory = "j"\nledger_directories = ["l"]\n'
    )

    def log(*_arguments: object, **_options: object) -> int:
        with pytest.raises(OSError, match="space"):
            print("the log", file=sys.stderr)
        return EXIT_FATAL

    monkeypatch.setattr(process, "run", log)
    with full_output(monkeypatch) as full:
        assert main(["--config", str(config)]) == EXIT_FATAL
    assert full["stderr"].was_given_up


def test_refusal_that_cannot_be_told_has_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with full_output(monkeypatch) as full:
        assert main(["--config", str(tmp_path / "none")]) == EXIT_REFUSED
    assert full["stderr"].was_given_up


def test_process_whose_log_is_on_a_full_disk_does_not_wait_for_a_disk_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = list[int]()
    monkeypatch.setattr("os._exit", ended.append)
    with full_output(monkeypatch) as full:
        full["stdout"].text.write("no whole line")
        daemon_thread.end_process(EXIT_FATAL, 0.0)
        for thread in threading.enumerate():
            if thread.name == "end":
                thread.join()
    assert ended == [EXIT_FATAL]
