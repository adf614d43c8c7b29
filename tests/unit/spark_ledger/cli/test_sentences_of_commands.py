"""What a command cannot use is said in a sentence, with the right exit status."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_ledger import local
from tests.style.sources import ROOT
from tests.unit.spark_ledger.cli.conftest import Run
from tests.unit.spark_ledger.cli.fakes import FakeClient

NO_UTF8 = os.fsdecode(b"caf\xe9")
USAGE, FAILED = 2, 1


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("ledgers", "read", "9" * 5000), USAGE, "is no ledger id"),
        (("ledgers", "delete", "9" * 5000, "--yes"), USAGE, "is no ledger id"),
        (("ledgers", "read", "9" * 19), FAILED, "see which ledgers exist"),
        (("streams", "truncate", "s", "--before", "800000d"), USAGE, "the years 1 to 9999"),
        (("streams", "truncate", "s", "--before", "999999999d"), USAGE, "the years 1 to 9999"),
        (
            ("streams", "truncate", "s", "--before", "0001-01-01T00:00:00+14:00"),
            USAGE,
            "the years 1 to 9999",
        ),
        (
            ("streams", "truncate", "s", "--before", "9999-12-31T23:59:59-14:00"),
            USAGE,
            "the years 1 to 9999",
        ),
        (("local", "status", "--directory", "~nobody-of-this-name/x"), USAGE, "is no path here"),
        (("local", "down", "--directory", "~nobody-of-this-name/x"), USAGE, "is no path here"),
        (("local", "up", "--directory", "~nobody-of-this-name/x"), USAGE, "is no path here"),
    ],
)
def test_argument_that_no_command_can_use_is_refused_with_a_sentence(
    client: FakeClient, run: Run, arguments: tuple[str, ...], status: int, words: str
) -> None:
    outcome = run(*arguments)
    assert outcome.status == status
    assert words in outcome.err and "Traceback" not in outcome.err


@pytest.mark.parametrize("before", ["0001-01-01T00:00:00", "9999-12-31T23:59:59", "2000d"])
def test_first_and_last_time_that_can_be_shown_are_taken(
    client: FakeClient, run: Run, before: str
) -> None:
    outcome = run("streams", "truncate", "s", "--before", before)
    assert outcome.status == USAGE and "no terminal to ask at" in outcome.err


def test_payload_is_stored_as_the_bytes_that_were_given(client: FakeClient, run: Run) -> None:
    assert run("ledgers", "append", NO_UTF8).status == 0
    assert client.ledgers[1].payloads == [b"caf\xe9"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("ledgers", "append"), "standard input is closed"),
        (("streams", "append", "s"), "standard input is closed"),
        (("ledgers", "delete", "1"), "no terminal to ask at"),
    ],
)
def test_standard_input_that_is_closed_is_wrong_usage(
    arguments: tuple[str, ...], words: str
) -> None:
    """As ``<&-`` of a shell, or a supervisor, closes it."""
    command = f"{sys.executable} -m spark_ledger.cli {' '.join(arguments)} <&-"
    uri = {"SPARK_LEDGER_METADATA": "zk://127.0.0.1:1/ledgers"}
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT, env={**os.environ, **uri}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == USAGE
    assert words in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["status", "up", "down"])
@pytest.mark.parametrize("error_number", [errno.EACCES, errno.ENOSPC])
def test_file_that_cannot_be_used_is_named(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: str, error_number: int
) -> None:
    """A directory of another user, or on a full disk."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(error_number, os.strerror(error_number), "/of/another/lock")

    monkeypatch.setattr(local, command, refuse)
    outcome = run("local", command)
    assert outcome.status == FAILED
    assert outcome.err.endswith(f"error: /of/another/lock: {os.strerror(error_number)}.\n")
    assert "Traceback" not in outcome.err
    assert "Traceback" in run("local", command, "--debug").err


def test_error_that_is_about_no_file_is_a_bug_and_shown_as_one(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(local, "status", refuse)
    with pytest.raises(OSError, match="Bad file descriptor"):
        run("local", "status")


@pytest.mark.parametrize(("encoding", "shown"), [("latin-1", "\\u2192"), ("utf-8", "→")])
def test_name_that_the_output_has_no_letter_for_is_escaped(
    tmp_path: Path, encoding: str, shown: str
) -> None:
    down = ("local", "down", "--directory", tmp_path / "→")
    done = subprocess.run(
        [sys.executable, "-m", "spark_ledger.cli", *down],
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode(encoding).endswith(f"/{shown}\n")
