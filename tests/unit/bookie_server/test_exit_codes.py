"""Exit codes: the README, --help and the constants say the same, and a log line goes with each."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path

import pytest

from bookie_server import exit_codes, process, server
from bookie_server.__main__ import main
from bookie_server.config import parse
from bookie_server.exit_codes import (
    EXIT_FAILED,
    EXIT_FATAL,
    EXIT_MEANINGS,
    EXIT_OK,
    EXIT_REFUSED,
    EXIT_REPLACED,
)
from bookie_server.server import BookieServer
from bookie_server.storage.cookie import Cookie
from spark_ledger.errors import (
    BookieReplacedError,
    ConfigurationError,
    CorruptionError,
    LedgerError,
    MetadataUnavailableError,
)
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree

README = (Path(__file__).parents[3] / "bookie_server" / "README.md").read_text(encoding="utf-8")
ROWS = [
    "log line",
    "metrics and health",
    "what to do",
    "when it happens again",
    "not possible today",
]


def section(code: int) -> str:
    return README.partition(f"\n### Exit code {code}\n")[2].partition("\n### ")[0]


def test_readme_table_has_the_meanings_of_the_constants() -> None:
    constants = {
        value
        for name, value in vars(exit_codes).items()
        if re.match("EXIT_[A-Z]+$", name) and isinstance(value, int)
    }
    table = re.findall(r"^\| (\d+) \| (.+) \|$", README, re.MULTILINE)
    assert {int(code): meaning for code, meaning in table} == EXIT_MEANINGS
    assert constants == EXIT_MEANINGS.keys() and len(table) == len(constants)


@pytest.mark.parametrize("code", sorted(EXIT_MEANINGS))
def test_readme_says_of_each_exit_code_what_to_do(code: int) -> None:
    rows = re.findall(r"^\| ([a-z ]+) \| \S.* \|$", section(code), re.MULTILINE)
    assert rows == ROWS


def test_help_names_each_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for code, meaning in EXIT_MEANINGS.items():
        assert f"{code} {meaning}" in shown


def test_storage_failure_logs_the_line_of_the_readme(caplog: pytest.LogCaptureFixture) -> None:
    text = 'metadata = "zk://h/l"\n[storage]\njournal_directory = "/j"\nledger_directories = ["/l"]'
    config = parse(text, Path("/bookie.toml"))
    made = BookieServer(config, ready_file=None, format_if_new=False)
    made._stop = asyncio.Event()
    with caplog.at_level(logging.CRITICAL):
        made._on_fatal("the flush thread ended unexpectedly")
    assert made._stop.is_set()
    assert f"`{caplog.messages[0]}`" in section(EXIT_FATAL)


CONFIG = 'metadata = "zk://h/l"\n[storage]\njournal_directory = "j"\nledger_directories = ["l"]\n'


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError("the name is taken"), EXIT_REFUSED),
        (CorruptionError("bookie.json is damaged"), EXIT_REFUSED),
        (MetadataUnavailableError("nobody listens"), EXIT_FAILED),
        (BookieReplacedError("another process is this bookie"), EXIT_REPLACED),
    ],
)
def test_error_of_a_run_is_a_line_and_the_code_of_the_readme(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: LedgerError,
    code: int,
) -> None:
    async def fails(_server: BookieServer) -> int:
        raise error

    monkeypatch.setattr(BookieServer, "run", fails)
    monkeypatch.setattr(process, "set_up_process", lambda: None)
    ended: list[int] = []
    (tmp_path / "bookie.toml").write_text(CONFIG)
    assert main(["--config", str(tmp_path / "bookie.toml")], ended.append) == code
    assert ended == [code], "whoever ends the process is told the code"
    said = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert [each.getMessage() for each in said] == [str(error)]
    assert not said[0].exc_info, "it says what to do: a traceback would hide it"


def test_storage_that_fails_before_the_bookie_serves_is_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for an earlier session to end: that is no stop that somebody asked for."""

    async def fails(made: BookieServer) -> int:
        made._stop = asyncio.Event()
        made._on_fatal("the flush thread ended unexpectedly")
        await made._unless_stopped(asyncio.sleep(60))
        raise AssertionError("it does not wait any more")

    monkeypatch.setattr(BookieServer, "run", fails)
    monkeypatch.setattr(process, "set_up_process", lambda: None)
    (tmp_path / "bookie.toml").write_text(CONFIG)
    assert main(["--config", str(tmp_path / "bookie.toml")]) == EXIT_FATAL


@pytest.mark.parametrize("option", ["--format-only", "--format"])
def test_directories_that_cannot_be_made_are_refused_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    option: str,
) -> None:
    """A supervisor starts a bookie that ended with 1 again and again."""
    tree = MemoryTree()

    async def open_store(_uri: str, **_options: object) -> MemoryMetadataStore:
        return tree.open_session()

    for module in (server, process):
        monkeypatch.setattr(module, "open_store", open_store)
    monkeypatch.setattr(process, "set_up_process", lambda: None)
    (tmp_path / "plain").write_text("a file where a directory is to be")
    text = 'bookie_id = "b1"\n' + CONFIG.replace('"j"', '"plain/j"')
    (tmp_path / "bookie.toml").write_text(text)
    for _again in range(2):
        caplog.clear()
        assert main(["--config", str(tmp_path / "bookie.toml"), option]) == EXIT_REFUSED
        said = capsys.readouterr().err.splitlines()
        lines = [each for each in (*said, *caplog.messages) if "directories cannot be made" in each]
        assert len(lines) == 1 and str(tmp_path / "plain" / "j") in lines[0]
    (tmp_path / "plain").unlink()
    assert main(["--config", str(tmp_path / "bookie.toml"), "--format-only"]) == EXIT_OK


def test_signal_before_the_bookie_serves_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stopped(_server: BookieServer) -> int:
        raise server.Stopped

    monkeypatch.setattr(BookieServer, "run", stopped)
    config = parse(CONFIG, tmp_path / "bookie.toml")
    made = BookieServer(config, ready_file=None, format_if_new=False)
    assert asyncio.run(process._exit_code(made)) == EXIT_OK


@pytest.mark.parametrize("option", ["--format-only", "--relocate"])
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, EXIT_OK),
        (ConfigurationError("it is registered at h:1"), EXIT_REFUSED),
        (CorruptionError("start.json is damaged"), EXIT_REFUSED),
        (MetadataUnavailableError("nobody listens"), EXIT_FAILED),
    ],
)
def test_work_without_serving_says_what_it_did_or_why_not(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    option: str,
    error: LedgerError | None,
    code: int,
) -> None:
    """It does not look for a rack, and closes its session with the metadata store."""
    stores: list[MemoryMetadataStore] = []
    asked: list[float] = []

    async def open_store(uri: str, *, connect_timeout_s: float) -> MemoryMetadataStore:
        assert uri == "zk://h/l"
        asked.append(connect_timeout_s)
        stores.append(MemoryTree().open_session())
        return stores[0]

    async def work(_config: object, store: MemoryMetadataStore) -> object:
        assert store is stores[0]
        if error is not None:
            raise error
        if option == "--relocate":
            return "bookie b1 is in j, l"
        return Cookie(1, "c", "b1", "j", ("l",), "journal")

    monkeypatch.setattr(process, "open_store", open_store)
    monkeypatch.setattr(process, "format_new", work)
    monkeypatch.setattr(process, "relocate", work)
    text = 'metadata_wait_s = 3.0\nrack_file = "none"\n' + CONFIG
    (tmp_path / "bookie.toml").write_text(text)
    assert main(["--config", str(tmp_path / "bookie.toml"), option]) == code
    assert asked == [3.0] and stores[0]._closed
    shown = capsys.readouterr()
    done = "formatted b1" if option == "--format-only" else "bookie b1 is in j, l"
    assert (shown.out.strip(), shown.err.strip()) == (
        (done, "") if error is None else ("", str(error))
    )
