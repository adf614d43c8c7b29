"""Notices about a local ZooKeeper: read only where their user alone can have written them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from spark_ledger.metadata.notices import NOTICE_BYTES_MAX, notice_path, read_notice


@pytest.fixture(autouse=True)
def notices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = notice_path(4444)
    path.parent.mkdir(mode=0o700)
    path.write_text("its heap is full")
    return path


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_notice_of_a_port_here_is_read(host: str) -> None:
    assert read_notice(f"{host}:4444") == "; its heap is full"
    assert read_notice(f"{host}:4445") == ""


def test_notice_says_nothing_of_other_machines() -> None:
    assert read_notice("10.0.0.1:4444") == ""
    assert read_notice("127.0.0.1:4444,10.0.0.1:4444") == ""


def test_notice_that_others_could_write_is_not_read(notices: Path) -> None:
    notices.parent.chmod(0o777)
    assert read_notice("127.0.0.1:4444") == ""


def test_notice_in_a_directory_of_somebody_else_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """He made it first, under the name of this user."""
    somebody_else = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: somebody_else)
    path = notice_path(4444)
    path.parent.mkdir(mode=0o700)
    path.write_text("pay to this account")
    assert read_notice("127.0.0.1:4444") == ""


def test_notice_behind_a_link_is_not_read(notices: Path, tmp_path: Path) -> None:
    notices.parent.rename(tmp_path / "elsewhere")
    notices.parent.symlink_to(tmp_path / "elsewhere")
    assert read_notice("127.0.0.1:4444") == ""


def test_notice_that_is_odd_is_not_shown(notices: Path) -> None:
    notices.write_text("x" * 10 * NOTICE_BYTES_MAX)
    assert len(read_notice("127.0.0.1:4444")) == NOTICE_BYTES_MAX + 2
    for odd in (b"\x1b[2J", b"   ", b""):
        notices.write_bytes(odd)
        assert read_notice("127.0.0.1:4444") == ""
