"""Parsers of a bookie's disk: frames, records, journal files, blocks, entry logs, index, cookie."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from bookie_server.storage import records
from bookie_server.storage.blocks import BlockFormatError, decode_block, encode_run
from bookie_server.storage.cookie import COOKIE_NAME, read_cookie
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.index.base import BlockLocation
from bookie_server.storage.index.lmdb_tables import (
    KEY,
    LEDGER_KEY,
    LEDGER_RECORD,
    ROW,
    read_ledger_record,
    read_row,
)
from bookie_server.storage.index.row_proofs import sealed
from bookie_server.storage.journal.changes import (
    access_key_body,
    decode_change,
    fence_body,
    last_add_confirmed_body,
)
from bookie_server.storage.journal.files import journal_path, read_batches
from bookie_server.storage.journal.journal import Journal
from bookie_server.storage.journal.mark import Mark, pack_mark, unpack_mark
from bookie_server.storage.journal.replay import START_OF_JOURNAL
from bookie_server.storage.ledgers.entry_log import EntryLogReader, EntryLogWriter, log_path
from bookie_server.storage.records import RecordType
from bookie_server.storage.start_record import RECORD_NAME, read_start, write_start
from spark_ledger.errors import ConfigurationError, CorruptionError, DigestMismatchError
from spark_ledger.limits import KIB
from spark_ledger.runs import EntryRun
from spark_ledger.types import BookieStart, EntryId, LedgerId
from spark_ledger.wire.frame import Crc32cDigest, HmacDigest, open_run
from tests.frames import open_frame, seal
from tests.fuzz.target import Target, only_what_was_written, written_again_it_is_the_same
from tests.unit.bookie_server.storage.support import JOURNAL, LEDGERS, formatted, make_run

SEED = 0x1234ABCD
DIRECTORY = Path("/fuzz")
RUNS = (
    make_run(3, [0]),
    make_run(3, [5, 6, 7, 8]),
    make_run(4, [1, 3, 9, 20], size=70),
    make_run(2**63 - 1, [2**62, 2**62 + 1]),
)


def storage_targets() -> list[Target]:
    """All targets of this file, with the frame of an entry, which bookies store."""
    return [
        *_frames(),
        *_records(),
        *_blocks(),
        _journal_file(),
        _entry_log(),
        *_index(),
        _cookie(),
        _start_record(),
    ]


def _frames() -> list[Target]:
    crc, mac = Crc32cDigest(), HmacDigest(b"a key of this ledger")
    payloads = (b"", b"p", b"payload " * 20)
    targets = []
    for name, digest, share in (("crc32c", crc, 120_000), ("hmac", mac, 30_000)):
        corpus = [seal(digest, 7, 8, lac, 900, data) for data in payloads for lac in (-1, 7)]

        def parse(data: bytes, digest: Crc32cDigest | HmacDigest = digest) -> object:
            return open_frame(digest, 7, 8, data)

        judge = only_what_was_written(corpus, parse)
        errors = (DigestMismatchError,)
        targets.append(Target(f"entry frame, {name}", corpus, parse, errors, share, judge))
    frames = [seal(crc, 7, entry, entry - 1, 9, b"row %d" % entry) for entry in range(4)]
    sizes = list(map(len, frames))

    def parse_run(data: bytes) -> object:
        entries, error = open_run(crc, EntryRun(LedgerId(7), EntryId(0), None, sizes, data))
        assert error is None or isinstance(error, DigestMismatchError)
        return tuple(entries)

    whole = b"".join(frames)
    starts = [parse_run(whole)[:count] for count in range(5)]  # type: ignore[index]

    def judge_run(_data: bytes, value: object) -> str:
        return "" if value in starts else f"delivered {value!r:.200}"

    targets.append(Target("frames of a run", [whole], parse_run, (), 50_000, judge_run))
    return targets


def _records() -> list[Target]:
    headers = [
        records.pack_header(kind, length, sequence, 0xDEADBEEF, SEED)
        for kind in RecordType
        for length, sequence in ((0, 1), (77, 2**40), (records.BODY_BYTES_MAX, 9))
    ]
    trailers = [records.pack_trailer(records.Trailer(100 * n, n, n), 3, SEED) for n in (1, 2**31)]
    file_headers = [
        records.pack_file_header(records.JournalFileHeader(number, 2**64 - 1, number, 5, 64 * KIB))[
            :64
        ]
        for number in (1, 2, 2**40)
    ]

    def header(data: bytes) -> object:
        return records.parse_header(data, SEED)

    def batch_search(data: bytes) -> object:
        found = records.find_later_batch(data, 2, SEED)
        assert found is None or found % records.BATCH_ALIGNMENT == 0
        return found

    pages = [bytes(4096) + headers[1].ljust(4096, b"\0"), headers[4] + b"x" * 4100]
    changes = [
        bytes([kind]) + b"".join(body.buffers)
        for kind, body in (
            (RecordType.FENCE, fence_body(LedgerId(9))),
            (RecordType.ACCESS_KEY, access_key_body(LedgerId(9), b"h" * 32)),
            (RecordType.LAST_ADD_CONFIRMED, last_add_confirmed_body(LedgerId(9), EntryId(4))),
        )
    ]
    marks = [pack_mark(Mark(1, 4096, 0, 0)), pack_mark(Mark(2**40, 2**30, 2**50, 2**32 - 1))]

    def change(data: bytes) -> object:
        return decode_change(data[0] if data else 0, data[1:])

    same_mark = written_again_it_is_the_same(lambda mark: pack_mark(mark))  # type: ignore[arg-type]
    return [
        Target("record header", headers, header, (), 160_000,
               only_what_was_written(headers, header)),
        Target("trailer body", trailers, lambda d: records.parse_trailer(d[24:]), (), 20_000),
        Target("journal header", file_headers, records.parse_file_header, (), 60_000,
               only_what_was_written(file_headers, records.parse_file_header)),
        Target("search of later batches", pages, batch_search, (), 20_000,
               only_what_was_written(pages, batch_search)),
        Target("change body", changes, change, (), 30_000),
        Target("checkpoint mark", marks, unpack_mark, (ValueError,), 20_000, same_mark),
    ]  # fmt: skip


def _blocks() -> list[Target]:
    corpus = [b"".join(encode_run(run, EntryId(run.first_entry - 1)).buffers) for run in RUNS]

    def again(value: object) -> bytes:
        run, last_add_confirmed = cast("tuple[EntryRun, EntryId]", value)
        return b"".join(encode_run(run, last_add_confirmed).buffers)

    judge = written_again_it_is_the_same(again)
    return [Target("block", corpus, decode_block, (BlockFormatError,), 100_000, judge)]


def _content(files: MemoryFileSystem, path: Path) -> bytes:
    return files.open(path).pread(1 << 30, 0)


def _disk_with(path: Path, data: bytes) -> MemoryFileSystem:
    files = MemoryFileSystem()
    files.mkdir(path.parent)
    files.create(path).pwritev([data], 0)
    return files


def _journal_file() -> Target:
    """A journal file of five batches: what is read is a prefix of what was written."""
    files = formatted()
    journal = Journal(
        files,
        JOURNAL,
        end=START_OF_JOURNAL,
        file_bytes=7 * 4096,
        batch_bytes_max=16 * KIB,
        post=lambda call: call(),
        on_fatal=lambda message: None,
        new_salt=lambda: 99,
    )
    for run in (*RUNS, RUNS[0]):
        block = encode_run(run, EntryId(-1))
        journal.append(RecordType.RUN, block, lambda status, message: None)
        journal.append(RecordType.FENCE, fence_body(run.ledger_id), lambda status, message: None)
        journal.commit_pending()
    path = journal_path(JOURNAL, 1)
    corpus = [_content(files, path)]
    journal.close()  # with a block that says so behind the batches
    corpus.append(_content(files, path))

    def parse(data: bytes) -> object:
        batches = read_batches(_disk_with(path, data), JOURNAL, Mark(1, 4096, 0, 0))
        return [(batch.records, batch.end) for batch in batches]

    written: list[object] = parse(corpus[0])  # type: ignore[assignment]
    assert len(written) == 5

    def judge(_data: bytes, value: object) -> str:
        found: list[object] = value  # type: ignore[assignment]
        return "" if found == written[: len(found)] else f"read {found!r:.300}"

    return Target("journal file", corpus, parse, (CorruptionError,), 12_000, judge)


def _entry_log() -> Target:
    files = MemoryFileSystem()
    files.mkdir(DIRECTORY)
    writer = EntryLogWriter(files, DIRECTORY, 1)
    places = [writer.append(encode_run(run, EntryId(-1))) for run in RUNS]
    writer.finish()
    path = log_path(DIRECTORY, 1)
    corpus = [_content(files, path)]
    # A damaged block location in the index counts as a damaged block.
    wrong_places = (BlockLocation(1, 0, 40), BlockLocation(1, places[1].offset + 1, 40))

    def parse(data: bytes) -> object:
        reader = EntryLogReader(_disk_with(path, data), DIRECTORY)
        found = []
        for place in (*places, *wrong_places):
            try:
                run = reader.read(place)
            except CorruptionError:
                continue
            assert place in places, f"a block at {place}"
            found.append((place, bytes(run.frames), list(run.ids()), run.ledger_id))
        return found

    written = parse(corpus[0])

    def judge(_data: bytes, value: object) -> str:
        wrong = [item for item in value if item not in written]  # type: ignore
        return f"served {wrong!r:.200}" if wrong else ""

    return Target("entry log", corpus, parse, (), 15_000, judge)


def _index() -> list[Target]:
    path = Path("/index")
    keys = (KEY.pack(3, 5), LEDGER_KEY.pack(3))
    rows = [
        sealed(keys[0], ROW.pack(1, offset, 300, offset % 2, 9)) for offset in (4096, 2**32 - 1)
    ]
    ledger_records = [
        sealed(keys[1], LEDGER_RECORD.pack(flags, b"h" * 32, 3, 9)) for flags in range(4)
    ]

    def row(data: bytes) -> object:
        return read_row(keys[0], data, path)

    def ledger_record(data: bytes) -> object:
        return read_ledger_record(keys[1], data, path)

    named = (CorruptionError,)
    return [
        Target("index row", rows, row, named, 30_000, only_what_was_written(rows, row)),
        Target(
            "ledger record",
            ledger_records,
            ledger_record,
            named,
            30_000,
            only_what_was_written(ledger_records, ledger_record),
        ),
    ]


def _cookie() -> Target:
    files = formatted()
    corpus = [_content(files, each / COOKIE_NAME) for each in (JOURNAL, *LEDGERS)]

    def parse(data: bytes) -> object:
        return read_cookie(_disk_with(JOURNAL / COOKIE_NAME, data), JOURNAL)

    errors = (CorruptionError, ConfigurationError)
    return Target("cookie", corpus, parse, errors, 20_000, is_text=True)


def _start_record() -> Target:
    files, path = formatted(), JOURNAL / RECORD_NAME
    place = read_start(files, JOURNAL).place
    corpus = []
    for current, pending in ((None, BookieStart(1, "aa")), (BookieStart(9, "bb"), None)):
        write_start(files, JOURNAL, place=place, current=current, pending=pending)
        corpus.append(_content(files, path))

    def parse(data: bytes) -> object:
        disk = formatted()
        disk.create(path).pwritev([data], 0)
        return read_start(disk, JOURNAL)

    errors = (CorruptionError, ConfigurationError)
    return Target("start record", corpus, parse, errors, 20_000, is_text=True)
