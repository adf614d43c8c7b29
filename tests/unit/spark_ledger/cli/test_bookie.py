"""``ledger bookie``: becomes the server with the right arguments."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from tests.unit.spark_ledger.cli.conftest import Run


class Became(Exception):
    """Stands for the new program."""


@pytest.fixture
def argv(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []

    def execv(path: str, arguments: list[str]) -> NoReturn:
        assert path == sys.executable
        found.extend(arguments[1:])
        raise Became

    monkeypatch.setattr(os, "execv", execv)
    return found


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "bookie.toml").write_text("")
    return str(tmp_path / "bookie.toml")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("run",), ["--log-level", "info"]),
        (("run", "--format", "--log-level", "debug"), ["--log-level", "debug", "--format"]),
        (("format",), ["--log-level", "warning", "--format-only"]),
        (("relocate", "--yes"), ["--log-level", "warning", "--relocate"]),
    ],
)
def test_becomes_the_server(
    run: Run, argv: list[str], config: str, arguments: tuple[str, ...], expected: list[str]
) -> None:
    with pytest.raises(Became):
        run("bookie", *arguments, "--config", config)
    assert argv == ["-m", "bookie_server", "--config", config, *expected]


def test_missing_config_is_named(run: Run, argv: list[str]) -> None:
    outcome = run("bookie", "run", "--config", "/no/such.toml")
    assert outcome.status == 2
    assert "/no/such.toml" in outcome.err
    assert argv == []


def test_relocation_that_is_not_confirmed_does_nothing(
    run: Run, argv: list[str], config: str
) -> None:
    outcome = run("bookie", "relocate", "--config", config)
    assert outcome.status != 0 and "Go on?" in outcome.out + outcome.err and argv == []
