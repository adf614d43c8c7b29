"""Racks from the configuration, from a table and from a script."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie_server import rack
from bookie_server.config import BookieConfig, load
from bookie_server.rack import with_rack
from spark_ledger.errors import ConfigurationError


def configured(directory: Path, line: str, address: str = "h:1", name: str = "") -> BookieConfig:
    path = directory / "bookie.toml"
    path.write_text(
        f'metadata = "zk://h:1/x"\nbookie_id = "{name}"\n{line}\n'
        f'[listen]\nadvertised_address = "{address}"\n'
        '[storage]\njournal_directory = "j"\nledger_directories = ["l"]\n'
    )
    return load(path)


def script(directory: Path, text: str) -> BookieConfig:
    path = directory / "racks.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return configured(directory, 'rack_script = "racks.sh"', "host-1:3181")


def test_rack_is_the_configured_one(tmp_path: Path) -> None:
    assert with_rack(configured(tmp_path, 'rack = "/eu/r1"')).rack == "/eu/r1"


@pytest.mark.parametrize(
    ("name", "address", "rack"),
    [
        ("", "host-1:3181", "/eu/r1"),
        ("b1", "host-1", "/eu/r1"),
        ("b1", "10.0.0.1:3181", "/eu/r2"),
        ("b9", "host-1:3181", "/us/r1"),
        ("", "[::1]:3181", "/v6"),
        ("", "[::1]", "/v6"),
    ],
)
def test_rack_of_the_file_is_that_of_the_bookie_then_of_its_address(
    tmp_path: Path, name: str, address: str, rack: str
) -> None:
    table = "# hosts\nhost-1 /eu/r1\n\n10.0.0.1\t/eu/r2\nb9 /us/r1\n::1 /v6\n"
    (tmp_path / "racks").write_text(table)
    assert with_rack(configured(tmp_path, 'rack_file = "racks"', address, name)).rack == rack


def test_bookie_that_the_file_does_not_name_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "racks").write_text("host-1 /eu/r1\n")
    with pytest.raises(ConfigurationError, match="no line for b1 or host-2"):
        with_rack(configured(tmp_path, 'rack_file = "racks"', "host-2:3181", "b1"))


def test_rack_of_the_script_is_what_it_prints_for_the_address(tmp_path: Path) -> None:
    assert with_rack(script(tmp_path, 'echo "/dc/$1"')).rack == "/dc/host-1"


@pytest.mark.parametrize("text", ["exit 3", "echo nowhere", "echo /", "true", "echo '/a b'"])
def test_script_that_does_not_tell_ends_the_start(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError, match="rack"):
        with_rack(script(tmp_path, text))


@pytest.mark.parametrize("content", [None, b"h \xff\xfe\n"], ids=["missing", "no text"])
def test_file_that_cannot_be_read_ends_the_start(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "racks").write_bytes(content)
    with pytest.raises(ConfigurationError, match=f"rack_file {tmp_path}/racks cannot be read"):
        with_rack(configured(tmp_path, 'rack_file = "racks"'))


@pytest.mark.parametrize("text", ["printf '/r\\377'", "sleep 9", "exit 1"])
def test_script_that_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(rack, "RACK_SCRIPT_S", 0.5 if "sleep" in text else 60.0)
    with pytest.raises(ConfigurationError, match=r"rack_script .*racks\.sh failed"):
        with_rack(script(tmp_path, text))


def test_script_that_is_no_program_is_named(tmp_path: Path) -> None:
    (tmp_path / "racks.sh").write_text("echo /r1")
    with pytest.raises(ConfigurationError, match=r"rack_script .*racks\.sh failed"):
        with_rack(configured(tmp_path, 'rack_script = "racks.sh"'))


def test_rack_is_said_in_one_way_only(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="only one of"):
        configured(tmp_path, 'rack_file = "a"\nrack_script = "b"')
