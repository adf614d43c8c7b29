"""An index that LMDB gives up, as it could not write a root, ends the process or is opened anew."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from types import SimpleNamespace

import lmdb
import pytest

from bookie_server.bookie import Bookie
from bookie_server.opening import open_bookie
from bookie_server.storage.config import StorageConfig
from bookie_server.storage.cookie import format_directories
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from bookie_server.storage.index.lmdb_index import LmdbIndex
from bookie_server.storage.index.lmdb_update import LmdbUpdate
from spark_ledger.errors import ConfigurationError
from spark_ledger.limits import MIB
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId
from tests.unit.bookie_server.storage.support import KnownKeys, make_run

LEDGER = LedgerId(7)
OK = BookieStatus.OK


def root_descriptor(directory: Path) -> int:
    """The descriptor by which LMDB writes roots: the only one of the file that syncs each write."""
    for name in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
            flags = Path(f"/proc/self/fdinfo/{name}").read_text().split("flags:")[1].split()[0]
        except OSError:
            continue
        if path == f"{directory}/index/data.mdb" and int(flags, 8) & os.O_DSYNC:
            return int(name)
    raise AssertionError("LMDB writes roots in another way")


def fail_roots(directory: Path) -> Callable[[], None]:
    """The disk of the index refuses roots from now on, until the callable is called."""
    root = root_descriptor(directory)

    def becomes(path: Path, flags: int) -> None:
        other = os.open(path, flags)
        os.dup2(other, root)
        os.close(other)

    becomes(Path("/dev/full"), os.O_WRONLY)
    return lambda: becomes(directory / "index" / "data.mdb", os.O_RDWR | os.O_DSYNC)


class Site:
    """A bookie with threads over real files."""

    def __init__(self, root: Path) -> None:
        self.journal, self.ledgers = root / "j", root / "l"
        format_directories(
            PosixFileSystem(),
            self.journal,
            (self.ledgers,),
            cluster_id="c",
            bookie_id=BookieId("b"),
        )
        self.posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.fatal: list[str] = []
        self.bookie: Bookie

    def open(self, flush_interval_s: float) -> None:
        config = StorageConfig(
            self.journal,
            (self.ledgers,),
            BookieId("b"),
            cluster_id="c",
            journal_file_bytes=MIB,
            flush_interval_s=flush_interval_s,
            disk_reserve_bytes=0,
            disk_high_water_mark=1.0,
            disk_low_water_mark=1.0,
        )
        self.bookie = open_bookie(
            config, post=self.posted.put, keys=KnownKeys(), on_fatal=self.fatal.append
        )

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = monotonic() + 20
        while not condition():
            assert monotonic() < deadline
            while not self.posted.empty():
                self.posted.get()()

    def add(self, entry: int) -> None:
        answers: list[BookieStatus] = []
        self.bookie.add(
            make_run(LEDGER, [entry]),
            access_key=b"",
            recovery=False,
            last_add_confirmed=EntryId(-1),
            done=lambda status, _text: answers.append(status),
        )
        self.until(lambda: bool(answers))
        assert answers == [OK]

    def status(self, entry: int) -> BookieStatus:
        outcome = self.bookie.read(LEDGER, EntryId(entry), EntryId(entry), stride=1, max_bytes=1000)
        return outcome.status


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.bookie.close()


def test_index_that_was_given_up_ends_the_process_and_a_restart_brings_it_back(site: Site) -> None:
    """Also where nothing comes that a flush would have to store: reads would fail for ever."""
    site.open(flush_interval_s=0.05)
    site.add(0)
    site.until(lambda: site.bookie.stats().ledger_storage.cache_bytes == 0)
    site.bookie.flush()  # of the mark that covers it: no later flush has anything to store
    assert not site.fatal and site.status(0) is OK
    goes_on = fail_roots(site.ledgers)
    with pytest.raises(OSError, match="index"):
        site.bookie.delete_ledgers([LedgerId(9)])
    goes_on()
    assert site.status(0) is BookieStatus.IO_ERROR, "the disk is well, and LMDB is not"
    site.until(lambda: bool(site.fatal))
    assert str(site.ledgers / "index") in site.fatal[0] and "must restart" in site.fatal[0]
    storage = site.bookie._storage
    flushes = storage._flush_stats.flushes
    site.until(lambda: storage._flush_stats.flushes > flushes + 2)
    assert len(site.fatal) == 1, "it is told once"
    site.bookie.close()
    site.open(flush_interval_s=60.0)
    assert site.status(0) is OK


def test_nothing_is_told_while_the_index_works(site: Site) -> None:
    site.open(flush_interval_s=0.02)
    site.add(0)
    site.until(lambda: site.bookie.stats().ledger_storage.flushes > 3)
    assert not site.fatal


@pytest.mark.parametrize("times", [1, 2])
def test_start_whose_index_was_given_up_opens_it_once_more(
    site: Site, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Where the error that LMDB gave up for was one of a moment ago, the disk is well by now."""
    site.open(flush_interval_s=60.0)
    site.add(0)
    site.bookie.close()
    commit, failures = LmdbUpdate.commit, list[int]()

    def fails(update: LmdbUpdate) -> None:
        if len(failures) < times:
            failures.append(1)
            fail_roots(site.ledgers)
        commit(update)

    with monkeypatch.context() as patched:
        patched.setattr(LmdbUpdate, "commit", fails)
        if times > 1:
            with pytest.raises(ConfigurationError, match="cannot be opened") as raised:
                site.open(flush_interval_s=60.0)
            cause = raised.value.__cause__
            assert isinstance(cause, OSError) and cause.errno == errno.EIO
        else:
            site.open(flush_interval_s=60.0)
            assert not site.fatal and site.status(0) is OK
    assert len(failures) == times
    if times > 1:
        site.open(flush_interval_s=60.0)
        assert site.status(0) is OK


def test_index_that_has_no_place_for_one_more_reader_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = LmdbIndex(tmp_path / "index", map_bytes=MIB)

    def refuses() -> None:
        raise lmdb.ReadersFullError("mdb_txn_begin")

    with monkeypatch.context() as patched:
        patched.setattr(index, "_env", SimpleNamespace(begin=refuses))
        assert index.why_lost() == ""
    index.close()
