"""A stopped bookie's directories are verified: every damage is told, and nothing is changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bookie_server.checking import main
from bookie_server.storage.cookie import INDEX_NAME, format_directories
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from bookie_server.storage.index.lmdb_index import LmdbIndex
from bookie_server.storage.ledgers.entry_log import block_path
from spark_ledger.limits import KIB, MIB
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.unit.bookie_server.storage.support import BOOKIE_ID, Machine, small_config


def opened(root: Path) -> Machine:
    config = small_config(
        journal_directory=root / "journal",
        ledger_directories=(root / "ledgers",),
        write_once_bytes=4 * KIB,
        index_map_bytes=MIB,
    )
    return Machine(
        PosixFileSystem(),
        config,
        open_index=lambda path: LmdbIndex(path, map_bytes=MIB),  # type: ignore[arg-type,return-value]
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A bookie that was stopped: ledger 2 in an entry log and a run log."""
    format_directories(
        PosixFileSystem(),
        tmp_path / "journal",
        [tmp_path / "ledgers"],
        cluster_id="c",
        bookie_id=BOOKIE_ID,
    )
    machine = opened(tmp_path)
    for first, size in ((0, 40), (10, 600), (20, 40)):
        assert machine.add(2, range(first, first + 10), size=size) is BookieStatus.OK
        machine.flush()
    machine.close()
    return tmp_path


def hurt_second_block(root: Path) -> Path:
    index = LmdbIndex(root / "ledgers" / INDEX_NAME, map_bytes=MIB)
    location = index.rows(LedgerId(2))[1].location
    index.close()
    path = block_path(root / "ledgers", location)
    data = bytearray(path.read_bytes())
    data[location.offset + 100] ^= 1
    path.write_bytes(data)
    return path


def content(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_check_of_a_whole_bookie_finds_nothing_and_changes_nothing(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(root)
    assert main(["check", str(root / "ledgers")]) == 0
    assert main(["check", str(root / "journal")]) == 0
    assert content(root) == before
    out = capsys.readouterr().out
    assert "ledgers-0: 3 blocks" in out and out.count("0 findings") == 2


def test_check_tells_a_damaged_block_and_repairs_when_told(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = hurt_second_block(root)
    before = content(root)
    assert main(["check", str(root / "ledgers"), "--json"]) == 1
    assert content(root) == before
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["what"], finding["ledger_id"], finding["first_entry"]) == ("block", 2, 10)
    assert path.name in finding["why"]
    assert main(["dump", str(path), "--json"]) == 1
    (block,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (block["first_entry"], block["last_entry"]) == (10, 19) and block["why"]

    assert main(["check", str(root / "ledgers"), "--repair"]) == 1
    assert main(["check", str(root / "ledgers"), "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out.splitlines()[-1])["findings"]
    assert (finding["what"], finding["last_entry"]) == ("lacking", 19)
    machine = opened(root)
    outcome = machine.bookie.read(LedgerId(2), EntryId(0), EntryId(29), stride=1, max_bytes=MIB)
    assert (outcome.status, outcome.entry_id) == (BookieStatus.IO_ERROR, 10)
    assert machine.bookie.list_entries(LedgerId(2)) == [(0, 9), (20, 29)]
    machine.close()


def test_check_tells_a_damaged_index_and_a_damaged_journal(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = root / "ledgers" / INDEX_NAME / "data.mdb"
    data.write_bytes(data.read_bytes()[:5000])
    assert main(["check", str(root / "ledgers")]) == 1
    assert "index" in capsys.readouterr().out
    journal = max((root / "journal").glob("journal-*.log"))
    hurt = bytearray(journal.read_bytes())
    hurt[10] ^= 1
    journal.write_bytes(hurt)
    assert main(["check", str(root / "journal")]) == 1
    assert journal.name in capsys.readouterr().out


def test_check_refuses_what_is_in_use_or_no_directory_of_a_bookie(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = opened(root)
    assert main(["check", str(root / "ledgers")]) == 2
    assert "in use" in capsys.readouterr().err
    machine.close()
    assert main(["check", str(root)]) == 2
    assert main(["dump", str(root / "ledgers" / "bookie.json")]) == 2
