"""Deletion and compaction in any order with everything else are what a dict says; and on a disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bookie_server.storage.cookie import format_directories
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from bookie_server.storage.index.lmdb_index import LmdbIndex
from bookie_server.storage.index.memory_index import MemoryIndex
from spark_ledger.limits import KIB, MIB
from spark_ledger.types import BookieStatus, LedgerId
from tests.listed import listed
from tests.unit.bookie_server.storage.ledgers.test_compaction import compact, delete, files_of
from tests.unit.bookie_server.storage.support import (
    BOOKIE_ID,
    Machine,
    expected,
    formatted,
    small_config,
)


class Store(RuleBasedStateMachine):
    """Any order of adds, fences, deletions, flushes, compactions and restarts, against a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.config = small_config(entry_log_bytes=4 * KIB, write_once_bytes=2 * KIB)
        self.machine = Machine(formatted(), self.config)
        self.held: dict[int, set[int]] = {}
        self.fenced: set[int] = set()
        self.next_ledger = 6
        self.alive = list(range(6))

    @rule(
        slot=st.integers(0, 5), first=st.integers(0, 40), gaps=st.integers(0, 7), big=st.booleans()
    )
    def add(self, slot: int, first: int, gaps: int, big: bool) -> None:
        ledger_id = self.alive[slot]
        ids = [e for e in range(first, first + 6) if not gaps & (1 << (e % 3))] or [first]
        size = 900 if big else 40
        known = self.held.setdefault(ledger_id, set())
        if ledger_id in self.fenced or any((e < 50) for e in ids if e in known):
            return
        ids = [e + (100 if big else 0) for e in ids]
        if known & set(ids):
            return
        status = self.machine.add(ledger_id, ids, size=size, recovery=True)
        assert status is BookieStatus.OK
        known.update(ids)

    @rule(slot=st.integers(0, 5))
    def fence(self, slot: int) -> None:
        assert self.machine.fence(self.alive[slot]) is BookieStatus.OK
        self.fenced.add(self.alive[slot])

    @rule(slot=st.integers(0, 5))
    def delete(self, slot: int) -> None:
        delete(self.machine, self.alive[slot])
        self.held.pop(self.alive[slot], None)
        self.fenced.discard(self.alive[slot])
        self.alive[slot], self.next_ledger = self.next_ledger, self.next_ledger + 1

    @rule()
    def flush(self) -> None:
        self.machine.flush()

    @rule(full=st.booleans())
    def compact(self, full: bool) -> None:
        compact(self.machine, full=full)

    @rule()
    def restart(self) -> None:
        gone = self.machine.keys.missing
        self.machine.flush()
        self.machine.close()
        self.machine = Machine(files_of(self.machine), self.config)
        self.machine.keys.missing = gone

    @invariant()
    def all_is_there(self) -> None:
        for ledger_id in self.alive:
            small = {e for e in self.held.get(ledger_id, ()) if e < 100}
            large = self.held.get(ledger_id, set()) - small
            wanted = expected(ledger_id, sorted(small)) | expected(ledger_id, sorted(large), 900)
            assert self.machine.held(ledger_id) == wanted
            assert self.machine.is_fenced(ledger_id) == (ledger_id in self.fenced)
        for ledger_id in range(self.next_ledger):
            if ledger_id not in self.alive:
                assert listed(self.machine.bookie, LedgerId(ledger_id)) is None

    @precondition(lambda self: self.next_ledger > 6)
    @rule()
    def nothing_dead_stays(self) -> None:
        """Of directories whose ledgers are all gone, only logs in use are left."""
        for ledger_id in list(self.alive):
            self.delete(self.alive.index(ledger_id))
        self.machine.flush()
        compact(self.machine)
        for use in self.machine.bookie.stats().ledger_storage.compaction.directories:
            assert use.logs == 0, use


Store.TestCase.settings = settings(
    max_examples=15,
    stateful_step_count=30,
)
TestStore = Store.TestCase


# -- on a disk, with LMDB -------------------------------------------------------------------------


def test_compaction_on_a_real_disk(tmp_path: Path) -> None:
    directories = [tmp_path / name for name in ("journal", "ledgers")]
    for directory in directories:
        directory.mkdir()
    files = PosixFileSystem()
    format_directories(
        files, directories[0], tuple(directories[1:]), cluster_id="test", bookie_id=BOOKIE_ID
    )
    config = small_config(
        journal_directory=directories[0],
        ledger_directories=(directories[1],),
        journal_file_bytes=256 * KIB,
        write_cache_bytes=4 * MIB,
        entry_log_bytes=64 * KIB,
        write_once_bytes=16 * KIB,
    )
    open_index: Callable[[Path], MemoryIndex] = lambda path: LmdbIndex(  # type: ignore # noqa: E731
        path, map_bytes=8 * MIB
    )
    machine = Machine(files, config, open_index)
    for number in range(12):
        for ledger_id in (1, 2, 3):
            ids = range(10 * number, 10 * number + 10)
            size = 4 * KIB if ledger_id == 3 or number % 2 else 100
            assert machine.add(ledger_id, ids, size=size) is BookieStatus.OK
        machine.flush()
    before = sum(path.stat().st_size for path in directories[1].glob("*.log"))
    wanted = machine.held(3)
    delete(machine, 1, 2)
    compact(machine)
    after = sum(path.stat().st_size for path in directories[1].glob("*.log"))
    assert machine.held(3) == wanted and after < 0.7 * before
    machine.close()
    machine = Machine(files, config, open_index)
    assert machine.held(3) == wanted and machine.held(1) == {}
    machine.close()
