"""Exit codes: the README, --help and the constants say the same, and a log line goes with each."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path

import pytest

from bookie_server import exit_codes
from bookie_server.__main__ import main
from bookie_server.config import parse
from bookie_server.exit_codes import EXIT_FATAL, EXIT_MEANINGS
from bookie_server.server import BookieServer

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
    server = BookieServer(config, ready_file=None, format_if_new=False)
    server._stop = asyncio.Event()
    with caplog.at_level(logging.CRITICAL):
        server._on_fatal("the flush thread ended unexpectedly")
    assert server._stop.is_set()
    assert f"`{caplog.messages[0]}`" in section(EXIT_FATAL)
