"""A stopped bookie's directories are verified: every damage is told, and nothing is changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bookie_server import checking
from bookie_server.checking import main
from bookie_server.storage.blocks import encode_run
from bookie_server.storage.cookie import INDEX_NAME, format_directories
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from bookie_server.storage.index.lmdb_index import LmdbIndex
from bookie_server.storage.ledgers.dead_blocks import hole_in
from bookie_server.storage.ledgers.directory_scrub import POSITION_NAME
from bookie_server.storage.ledgers.entry_log import EntryLogWriter, block_path
from spark_ledger.limits import KIB, MIB
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.listed import listed
from tests.unit.bookie_server.storage.support import BOOKIE_ID, Machine, make_run, small_config


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
    return hurt_block(root, 2, 1)


def hurt_block(root: Path, ledger_id: int, number: int) -> Path:
    index = LmdbIndex(root / "ledgers" / INDEX_NAME, map_bytes=MIB)
    location = index.rows(LedgerId(ledger_id))[number].location
    index.close()
    path = block_path(root / "ledgers", location)
    data = bytearray(path.read_bytes())
    data[location.offset + 100] ^= 1
    path.write_bytes(data)
    return path


def test_dump_tells_blocks_that_were_given_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = PosixFileSystem()
    file = EntryLogWriter(files, tmp_path, 1)
    blocks = [encode_run(make_run(ledger_id, [0], 40 * KIB), EntryId(-1)) for ledger_id in (2, 4)]
    dead, _alive = [file.append(block) for block in blocks]
    file.finish()
    path = block_path(tmp_path, dead)
    hole = hole_in(dead)
    data = bytearray(path.read_bytes())
    data[hole.offset : hole.offset + hole.length] = bytes(hole.length)
    path.write_bytes(data)
    assert main(["dump", str(path), "--json"]) == 0
    found = list(map(json.loads, capsys.readouterr().out.splitlines()))
    assert [(each["ledger_id"], each["given_back"], each["why"]) for each in found] == [
        (2, True, ""),
        (4, False, ""),
    ]
    assert main(["dump", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("given back") and lines[1].endswith("whole")


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


@pytest.mark.leaves_open("file", reason="errors in the log that pytest keeps hold them")
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
    assert (block["first_entry"], block["last_entry"]) == (10, 19)
    assert block["why"] and not block["given_back"]

    assert main(["check", str(root / "ledgers"), "--repair"]) == 1
    assert main(["check", str(root / "ledgers"), "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out.splitlines()[-1])["findings"]
    assert (finding["what"], finding["last_entry"]) == ("lacking", 19)
    machine = opened(root)
    outcome = machine.bookie.read(LedgerId(2), EntryId(0), EntryId(29), stride=1, max_bytes=MIB)
    assert (outcome.status, outcome.entry_id) == (BookieStatus.IO_ERROR, 10)
    assert listed(machine.bookie, LedgerId(2)) == [(0, 9), (20, 29)]
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


@pytest.mark.parametrize("name", ["journal", "ledgers"])
def test_check_tells_a_newest_log_that_is_missing(
    root: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """A start refuses it, so a check that finds nothing would send the operator elsewhere."""
    newest = max((root / name).glob("journal-*.log"))
    newest.unlink()
    assert main(["check", str(root / name)]) == 1
    assert f"{newest} is missing" in capsys.readouterr().out


def test_check_refuses_what_is_in_use_or_no_directory_of_a_bookie(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = opened(root)
    assert main(["check", str(root / "ledgers")]) == 2
    assert "in use" in capsys.readouterr().err
    machine.close()
    assert main(["check", str(root)]) == 2
    assert main(["dump", str(root / "ledgers" / "bookie.json")]) == 2


@pytest.mark.parametrize("part", ["value", "key", "proof"])
def test_damaged_rows_of_the_index_come_back_as_copies_and_others_stay(
    root: Path, part: str
) -> None:
    machine = opened(root)
    assert machine.add(4, range(5)) is BookieStatus.OK
    machine.flush()
    (store,) = machine.bookie._storage._stores
    index = store.index
    assert isinstance(index, LmdbIndex)
    with index._env.begin(write=True) as transaction:  # as a disk does it, below the sums
        table = index._proofs if part == "proof" else index._rows
        cursor = transaction.cursor(table)
        assert cursor.first()
        key, stored = cursor.item()
        assert cursor.delete()
        if part == "key":
            transaction.put(bytes([key[0] ^ 1]) + key[1:], stored, db=table)
        else:
            transaction.put(key, bytes([stored[0] ^ 1]) + stored[1:], db=table)
    machine.bookie._storage.scrubber.run_once()
    stats = machine.bookie.stats().ledger_storage.scrub
    assert (stats.directories[0].bad_ledgers, stats.lacking) == (1, 1)
    outcome = machine.bookie.read(LedgerId(2), EntryId(29), EntryId(29), stride=1, max_bytes=MIB)
    assert outcome.status is BookieStatus.IO_ERROR
    assert listed(machine.bookie, LedgerId(2)) == [] and list(machine.held(4)) == [*range(5)]
    machine.bookie._storage.compactor.run_once(full=True, paced=False)
    for first, size in ((0, 40), (10, 600), (20, 40)):
        ids = range(first, first + 10)
        assert machine.add(2, ids, size=size, recovery=True) is BookieStatus.OK
    machine.flush()
    machine.bookie.lacking.refetched(machine.bookie.lacking.of(LedgerId(2)))
    machine.bookie._storage.compactor.run_once(full=True, paced=False)
    machine.close()
    again = opened(root)
    assert len(again.held(2)) == 30 and len(again.held(4)) == 5
    again.bookie._storage.scrubber.run_once()
    assert again.bookie.stats().ledger_storage.scrub.bad == 0
    again.close()


@pytest.mark.leaves_open("file", reason="errors in the log that pytest keeps hold them")
def test_repair_reads_also_what_a_pass_of_the_bookie_had_behind_it(root: Path) -> None:
    hurt_second_block(root)
    position = b'{"ledger_id": 3, "entry_id": 0, "is_running": true}'
    (root / "ledgers" / POSITION_NAME).write_bytes(position)
    assert main(["check", str(root / "ledgers"), "--repair"]) == 1
    machine = opened(root)
    assert [lack.first for lack in machine.bookie.lacking.of(LedgerId(2))] == [10]
    machine.close()


@pytest.mark.leaves_open("file", reason="errors in the log that pytest keeps hold them")
def test_check_reads_all_ledgers_page_by_page_and_tells_of_the_first_entry_of_the_first(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "SCRUB_LEDGERS_AT_ONCE", 2)
    machine = opened(root)
    for ledger_id in (0, 1, 3, 4):
        machine.add(ledger_id, range(3))
    machine.flush()
    machine.close()
    for ledger_id, block in ((0, 0), (2, 1)):
        hurt_block(root, ledger_id, block)
    assert main(["check", str(root / "ledgers")]) == 1
    out = capsys.readouterr().out
    assert "block ledger 0 entries 0 to 2: " in out and "block ledger 2 entries 10 to 19: " in out
    assert "7 blocks" in out and "2 findings" in out
    assert main(["check", str(root / "ledgers"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["ledgers"], found["blocks"], len(found["findings"])) == (5, 7, 2)


@pytest.mark.leaves_open("file", reason="errors in the log that pytest keeps hold them")
def test_damage_of_ledger_0_is_repaired_and_every_stretch_that_is_lacking_is_told(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = opened(root)
    for first in (0, 3, 6):
        machine.add(0, range(first, first + 3))
        machine.flush()
    machine.close()
    for block in (0, 2):
        hurt_block(root, 0, block)
    assert main(["check", str(root / "ledgers"), "--repair"]) == 1
    capsys.readouterr()
    assert main(["check", str(root / "ledgers")]) == 1
    out = capsys.readouterr().out
    assert "lacking ledger 0 entries 0 to 2: " in out and "lacking ledger 0 entries 6 to 8: " in out


@pytest.mark.leaves_open("file", reason="errors in the log that pytest keeps hold them")
def test_dump_with_a_whole_block_behind_a_damaged_one_says_so_by_its_exit_code(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = opened(root)
    for ledger_id in (5, 6):
        machine.add(ledger_id, range(3))
    machine.flush()
    machine.close()
    path = hurt_block(root, 5, 0)
    assert main(["dump", str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.endswith("whole") for line in lines] == [False, True]
