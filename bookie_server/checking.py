"""``ledger bookie check`` and ``dump``: what a bookie's directory holds, and whether it is whole.

Nothing is changed without ``--repair``, and a directory in use is refused. ``--repair`` does what
the scrub of a bookie that runs does: what is damaged goes on the list of what is lacking, and comes
back from the other bookies once this one serves (rules S22 and S23).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from bookie_server.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_REFUSED
from bookie_server.storage.cookie import (
    INDEX_NAME,
    Cookie,
    claim_index,
    lock_directories,
    read_cookie,
)
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from bookie_server.storage.fs.vfs import File
from bookie_server.storage.index.base import BlockLocation, Index, IndexRow
from bookie_server.storage.index.lmdb_index import LmdbIndex
from bookie_server.storage.journal.files import (
    journal_numbers,
    journal_path,
    missing_file,
    read_batches,
    read_file_header,
)
from bookie_server.storage.journal.mark import Mark
from bookie_server.storage.journal.newest import read_newest
from bookie_server.storage.ledgers.dead_blocks import hole_in
from bookie_server.storage.ledgers.directory_scrub import DirectoryScrub
from bookie_server.storage.ledgers.entry_log import EntryLogReader, block_path
from bookie_server.storage.ledgers.lacking import Lacking
from bookie_server.storage.ledgers.log_scan import scan_blocks
from bookie_server.storage.ledgers.recent_blocks import RecentBlocks
from bookie_server.storage.records import FILE_HEADER_BYTES
from spark_ledger.errors import ConfigurationError, CorruptionError
from spark_ledger.limits import GIB
from spark_ledger.limits.storage import SCRUB_LEDGERS_AT_ONCE
from spark_ledger.runs import EntryRun
from spark_ledger.types import LedgerId

_JOURNAL: Final = "journal"
_INDEX_MAP_BYTES: Final = 1024 * GIB
"""Address space only: more than any index has."""

Told = Callable[[int], None]
"""Is told of bytes that were verified."""


class Finding(NamedTuple):
    """Something that is not as it should be. ``ledger_id``: -1 if it is of no one ledger."""

    what: str
    why: str
    ledger_id: int = -1
    first_entry: int = -1
    last_entry: int = -1


class Checked(NamedTuple):
    """What a check has seen."""

    role: str
    ledgers: int
    blocks: int
    byte_count: int
    findings: list[Finding]


def check(directory: Path, *, repair: bool, told: Told) -> Checked:
    """Verify a journal or ledger directory as a whole.

    Raises ConfigurationError if it is no such directory, or in use; OSError if it cannot be read.
    """
    files = PosixFileSystem()
    cookie = read_cookie(files, directory)
    locks = lock_directories(files, [directory])
    try:
        if cookie.role == _JOURNAL:
            return _check_journal(files, directory, told)
        return _check_ledgers(files, directory, cookie, repair, told)
    finally:
        for lock in locks:
            lock.release()


def _check_journal(files: PosixFileSystem, directory: Path, told: Told) -> Checked:
    batches, byte_count, findings = _read_log(files, directory, None, told)
    return Checked(_JOURNAL, 0, batches, byte_count, findings)


def _read_log(
    files: PosixFileSystem, directory: Path, mark: Mark | None, told: Told
) -> tuple[int, int, list[Finding]]:
    """The journal, or the run log of a ledger directory, from ``mark`` on or from its first file:
    batches, their bytes, and what a start would refuse (rule S5)."""
    batches = byte_count = 0
    numbers = journal_numbers(files, directory)
    try:
        newest = read_newest(files, directory)
        if newest is not None and newest > max(numbers, default=-1):
            raise missing_file(directory, newest)
        if mark is None and numbers:
            with closing(files.open(journal_path(directory, numbers[0]))) as file:
                header = read_file_header(file, numbers[0])
            mark = Mark(numbers[0], FILE_HEADER_BYTES, header.first_sequence - 1, header.chain)
        for batch in read_batches(files, directory, mark) if mark is not None else ():
            size = batch.end.offset - batch.offset
            batches, byte_count = batches + 1, byte_count + size
            told(size)
    except CorruptionError as error:
        return batches, byte_count, [Finding(_JOURNAL, str(error))]
    return batches, byte_count, []


def _check_ledgers(
    files: PosixFileSystem, directory: Path, cookie: Cookie, repair: bool, told: Told
) -> Checked:
    path, role = directory / INDEX_NAME, cookie.role
    try:
        index = LmdbIndex(path, map_bytes=_INDEX_MAP_BYTES, read_only=True)
    except CorruptionError as error:
        return Checked(role, 0, 0, 0, [Finding("index", str(error))])
    with closing(index):
        claim_index(index, cookie)  # what another one has is not damaged here
        try:
            lacking = Lacking(files, directory, index)
        except CorruptionError as error:
            return Checked(role, 0, 0, 0, [Finding("lacking", str(error))])
        checked = _verify(files, directory, role, index, told)
        _, _, findings = _read_log(files, directory, index.run_log_mark(), told)
    checked.findings.extend(findings)
    if repair and any(each.ledger_id >= 0 for each in checked.findings):
        with closing(LmdbIndex(path, map_bytes=_INDEX_MAP_BYTES)) as index:
            reader = EntryLogReader(files, directory)

            def read(ledger_id: LedgerId, row: IndexRow) -> EntryRun:
                return _read(reader, ledger_id, row)

            lacking = Lacking(files, directory, index)
            scrub = DirectoryScrub(files, directory, index, reader, read, lacking)
            scrub.begin_anew()
            scrub.run(Lock(), told)
    waiting = [
        Finding("lacking", "awaits a copy from another bookie", each, lack.first, lack.last)
        for each in lacking.ledgers()
        for lack in lacking.of(each)
    ]
    return checked._replace(findings=[*checked.findings, *waiting])


def _verify(
    files: PosixFileSystem, directory: Path, role: str, index: Index, told: Told
) -> Checked:
    reader = EntryLogReader(files, directory)
    ledgers = blocks = byte_count = 0
    findings: list[Finding] = []
    after = -1
    while held := index.held_ledgers(after, SCRUB_LEDGERS_AT_ONCE):
        after = held[-1].ledger_id
        for ledger_id in (each.ledger_id for each in held):
            ledgers += 1
            try:
                index.ledger_record(ledger_id)
                rows = index.rows(ledger_id)
            except CorruptionError as error:
                findings.append(Finding("index", str(error), ledger_id))
                continue
            faults = RecentBlocks[str]()
            for row in rows:
                fault = faults.get(row.location)
                if fault is None:
                    blocks, byte_count, fault = blocks + 1, byte_count + row.byte_count, ""
                    told(row.byte_count)
                    try:
                        _read(reader, ledger_id, row)
                    except (CorruptionError, OSError) as error:
                        fault = str(error)
                    faults.put(row.location, fault)
                if fault:
                    entries = row.first_entry, row.last_entry
                    findings.append(Finding("block", fault, ledger_id, *entries))
    return Checked(role, ledgers, blocks, byte_count, findings)


def _read(reader: EntryLogReader, ledger_id: LedgerId, row: IndexRow) -> EntryRun:
    """The run that a row names. Raises CorruptionError if what is there is another one."""
    run = reader.read(row.location)
    if run.ledger_id != ledger_id or run.last_entry != row.last_entry:
        raise CorruptionError(
            f"log {row.location.log_id} has a block of ledger {run.ledger_id} up to entry "
            f"{run.last_entry} at offset {row.location.offset}, the index names another one"
        )
    return run


class DumpedBlock(NamedTuple):
    """A block of a log. ``why``: what is wrong with it; empty if nothing is. ``given_back``: it is
    empty, as one is that died with its ledger (rule S25)."""

    offset: int
    length: int
    ledger_id: int
    first_entry: int
    last_entry: int
    why: str
    given_back: bool


def dump(path: Path) -> Iterator[DumpedBlock]:
    """The blocks of an entry log, or of a file of a run log, one behind the other.

    Raises ConfigurationError if the file is neither, CorruptionError if its header is damaged.
    """
    files = PosixFileSystem()
    number = path.stem.rpartition("-")[2]
    candidates = [BlockLocation(int(number), 0, 0)] if number.isdecimal() else []
    if candidates and path.name.startswith("journal-"):
        candidates = [BlockLocation(int(number) | 1 << 31, 0, 0)]
    if not candidates or block_path(path.parent, candidates[0]).name != path.name:
        raise ConfigurationError(
            f"{path} is no log: give an entries-*.log or journal-*.log of a ledger directory"
        )
    reader = EntryLogReader(files, path.parent)
    file, seed = reader.open_log(candidates[0].log_id)
    for block in scan_blocks(file, seed, candidates[0].log_id):
        why, given_back = "", False
        try:
            reader.read(block.location)
        except (CorruptionError, OSError) as error:
            given_back = isinstance(error, CorruptionError) and _is_empty(file, block.location)
            why = "" if given_back else str(error)
        yield DumpedBlock(*block.location[1:], *block[1:], why, given_back)


def _is_empty(file: File, location: BlockLocation) -> bool:
    """Whether nothing is left of a block but its headers."""
    hole = hole_in(location)
    return hole.length > 0 and not any(file.pread(hole.length, hole.offset))


def main(arguments: list[str] | None = None) -> int:
    """``python -m bookie_server.checking check|dump PATH``; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bookie_server.checking", description=__doc__)
    parser.add_argument("command", choices=["check", "dump"])
    parser.add_argument("path", type=Path)
    parser.add_argument("--repair", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    path = options.path.absolute()
    try:
        if options.command == "check":
            return _print_checked(path, repair=options.repair, as_json=options.json)
        return _print_dumped(path, as_json=options.json)
    except (ConfigurationError, CorruptionError, OSError) as error:
        print(error, file=sys.stderr)
        return EXIT_REFUSED


def _print_checked(path: Path, *, repair: bool, as_json: bool) -> int:
    done = 0

    def told(byte_count: int) -> None:
        nonlocal done
        before, done = done, done + byte_count
        if sys.stderr.isatty() and before // GIB != done // GIB:
            print(f"\r{done // GIB} GiB verified", end="", file=sys.stderr, flush=True)

    found = check(path, repair=repair, told=told)
    if as_json:
        fields = found._asdict() | {"findings": [each._asdict() for each in found.findings]}
        print(json.dumps(fields))
    else:
        for each in found.findings:
            where = f" ledger {each.ledger_id}" if each.ledger_id >= 0 else ""
            if each.first_entry >= 0:
                where += f" entries {each.first_entry} to {each.last_entry}"
            print(f"{each.what}{where}: {each.why}")
        kind = "batches" if found.role == _JOURNAL else "blocks"
        print(
            f"{found.role}: {found.blocks} {kind} of {found.byte_count} bytes verified, "
            f"{len(found.findings)} findings"
        )
    return EXIT_FAILED if found.findings else EXIT_OK


def _print_dumped(path: Path, *, as_json: bool) -> int:
    bad = False
    for block in dump(path):
        bad = bad or bool(block.why)
        if as_json:
            print(json.dumps(block._asdict()))
        else:
            print(
                f"{block.offset:>12} {block.length:>10} ledger {block.ledger_id} entries "
                f"{block.first_entry} to {block.last_entry} "
                + (block.why or ("given back" if block.given_back else "whole"))
            )
    return EXIT_FAILED if bad else EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
