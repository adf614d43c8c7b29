"""A workload on a bookie over any file system; what is answered goes into its promises.

Everything that happens is decided by the seed: adds of several ledgers in order, resends, adds of
a recovery with gaps, fences, explicit LACs, checkpoints with and without adds in flight, closing
and opening again, deletions of ledgers, compactions. Rolls of journal files and entry logs follow
from the small sizes configured.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest import mock

from bookie_server.storage.fs.vfs import DIRECT_ALIGNMENT, FileSystem
from bookie_server.storage.ledgers import dead_blocks
from spark_ledger.errors import ConfigurationError, CorruptionError
from spark_ledger.limits import KIB
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.crash.promises import LEDGER_COUNT, Promises, key_of, run_of
from tests.unit.bookie_server.storage.support import Machine, small_config

INJECTED = (errno.EIO, errno.ENOSPC, errno.EINTR, errno.EDQUOT)
CONFIG = small_config(write_cache_bytes=128 * KIB, entry_log_bytes=12 * KIB, write_once_bytes=KIB)
_DELETIONS: tuple[dict[str, bool], ...] = ({}, {"named": True}, {"reused": True})


class Workload:
    """Requests drawn from a seed. One object may drive several lives of a bookie in a row."""

    def __init__(self, seed: int, promises: Promises, *, faults: bool = False) -> None:
        """``faults``: the file system fails now and then. Without them nothing may fail."""
        self.promises = promises
        self._faults = faults
        self.choose = random.Random(seed)
        # Draws of its own: those of the rest stay as they were.
        self._choose_space = random.Random(f"space {seed}")
        self._choose_deletion = random.Random(f"deletion {seed}")
        self._next_entry = dict.fromkeys(range(LEDGER_COUNT), 0)
        # The ledger in each place: a deleted one makes way for another, of the same key and sizes.
        self._ledgers = list(range(LEDGER_COUNT))
        self.closed = False
        """Whether a bookie was closed on the way: that it could not say so in its journal is no
        failure, as everything was answered before."""

    def live(self, files: FileSystem, steps: int, *, reopens: bool = True) -> Machine | None:
        """Open a bookie, do ``steps`` things and close it; the last machine, still to be asked.

        None when a closing or opening in between met a failing disk.
        """
        eager = self.choose.random() < 0.5
        machine = Machine(files, CONFIG, eager=eager)
        for _step in range(steps):
            for _request in range(self.choose.randint(1, 4)):
                self.request(machine)
                if self.choose.random() < 0.04:
                    self._flush(machine, settle=False)
            machine.settle()
            self._read(machine)
            self._space(machine)
            chance = self.choose.random()
            if chance < 0.12:
                self._flush(machine, settle=True)
            elif chance < 0.16 and reopens and not machine.fatal:
                self.closed = True
                try:
                    machine.close()
                    machine = Machine(files, CONFIG, eager=eager)
                except (OSError, ConfigurationError, CorruptionError):
                    return None
        return machine

    def _read(self, machine: Machine) -> None:
        """One entry that was promised, while everything else goes on."""
        ledger_id = self._ledgers[self.choose.randrange(LEDGER_COUNT)]
        promised = self.promises.entries.get(ledger_id)
        if promised:
            entry_id = self.choose.choice(sorted(promised))
            self.promises.check_entry(machine, ledger_id, entry_id, "on the way")

    def _space(self, machine: Machine) -> None:
        """Delete a ledger now and then, and compact."""
        choose = self._choose_space
        if choose.random() < 0.15:
            how = self._choose_deletion.choice(_DELETIONS)
            self.delete(machine, choose.randrange(LEDGER_COUNT), how)
        if choose.random() < 0.25:
            with self._faults_pass(None):
                compact(machine, full=choose.random() < 0.7)

    def delete(self, machine: Machine, place: int, how: dict[str, bool]) -> None:
        """Delete the ledger in a place; another one takes it."""
        ledger_id = self._ledgers[place]
        self.promises.delete(ledger_id)
        self._ledgers[place] = ledger_id + 2 * LEDGER_COUNT
        self._next_entry[self._ledgers[place]] = 0
        small_holes = mock.patch.object(dead_blocks, "HOLE_BYTES_MIN", DIRECT_ALIGNMENT)
        # None, as of a ledger that may come again and cannot be flushed: it stays.
        with self._faults_pass(None), small_holes:
            machine.bookie.delete_ledgers([LedgerId(ledger_id)], **how)
            # An add that waits for room is let in behind the deletion, and may be one of this
            # ledger. A real bookie asks the metadata then; the keys of this one know all ledgers.
            if how and not machine.bookie.stats().adds_waiting:
                self.promises.gone.add(ledger_id)

    def request(self, machine: Machine) -> None:
        """One request of any kind, not settled yet."""
        choose = self.choose
        ledger_id = self._ledgers[choose.randrange(LEDGER_COUNT)]
        kind = choose.random()
        if kind < 0.03:
            self._fence(machine, ledger_id)
        elif kind < 0.08:
            self._write_lac(machine, ledger_id, self._next_entry[ledger_id] - 1)
        else:
            start = self._next_entry[ledger_id]
            recovery = False
            if kind < 0.23 and start:  # sent again, or copied by a recovery: overlaps what is there
                start = choose.randrange(start)
                recovery = True
            ids = list(range(start, start + choose.randint(1, 8)))
            if kind > 0.85 or recovery:
                ids = sorted(choose.sample(ids, choose.randint(1, len(ids))))
            self._next_entry[ledger_id] = max(self._next_entry[ledger_id], ids[-1] + 1)
            self._add(machine, ledger_id, ids, recovery)

    @contextmanager
    def _faults_pass(self, *others: int | None) -> Iterator[None]:
        """What the disk fails is tried again later. Without faults everything goes up."""
        try:
            yield
        except OSError as error:
            if not self._faults:
                raise
            assert error.errno in (*INJECTED, *others), error

    def _flush(self, machine: Machine, *, settle: bool) -> None:
        """A checkpoint; one that fails promises nothing."""
        with self._faults_pass():
            if settle:
                machine.flush()
            else:
                machine.bookie.flush()

    def _add(self, machine: Machine, ledger_id: int, ids: list[int], recovery: bool) -> None:
        promises = self.promises
        promises.sent.setdefault(ledger_id, set()).update(ids)
        lac = ids[0] - 1
        promises.lacs_sent[ledger_id] = max(promises.lacs_sent.get(ledger_id, -1), lac)

        def done(status: BookieStatus, message: str) -> None:
            if status is BookieStatus.OK:
                assert not machine.fatal, "a journal that failed answers nothing any more"
                if ledger_id in promises.deleted:
                    return
                promises.entries.setdefault(ledger_id, set()).update(ids)
                promises.lacs[ledger_id] = max(promises.lacs.get(ledger_id, -1), lac)
            else:
                promises.refused.append((status, message))

        machine.keys.learn(ledger_id, key_of(ledger_id))
        machine.bookie.add(
            run_of(ledger_id, ids),
            access_key=key_of(ledger_id),
            recovery=recovery,
            last_add_confirmed=EntryId(lac),
            done=done,
        )

    def _fence(self, machine: Machine, ledger_id: int) -> None:
        promises = self.promises
        promises.fences_sent.add(ledger_id)
        keep = partial(promises.fenced.add, ledger_id)

        def done(status: BookieStatus, message: str) -> None:
            if status is BookieStatus.OK:
                assert not machine.fatal, "a journal that failed answers nothing any more"
                if ledger_id not in promises.deleted:
                    keep()
            else:
                promises.refused.append((status, message))

        machine.keys.learn(ledger_id, key_of(ledger_id))
        machine.bookie.fence(LedgerId(ledger_id), access_key=key_of(ledger_id), done=done)

    def _write_lac(self, machine: Machine, ledger_id: int, lac: int) -> None:
        """An OK that comes at once says that the bookie knows it already, perhaps from an add that
        is still in flight: nothing new is promised by it."""
        promises = self.promises
        promises.lacs_sent[ledger_id] = max(promises.lacs_sent.get(ledger_id, -1), lac)
        before_it = dict(promises.lacs)
        at_once: list[BookieStatus] = []

        def done(status: BookieStatus, message: str) -> None:
            at_once.append(status)
            if status is BookieStatus.OK:
                assert not machine.fatal, "a journal that failed answers nothing any more"
                if ledger_id in promises.deleted:
                    return
                promises.lacs[ledger_id] = max(promises.lacs.get(ledger_id, -1), lac)
            else:
                promises.refused.append((status, message))

        machine.keys.learn(ledger_id, key_of(ledger_id))
        machine.bookie.write_last_confirmed(
            LedgerId(ledger_id), EntryId(lac), access_key=key_of(ledger_id), done=done
        )
        if at_once:
            promises.lacs = before_it


def compact(machine: Machine, *, full: bool = True) -> None:
    """One pass, as quickly as it goes."""
    machine.bookie._storage.compactor.run_once(full=full, paced=False)
