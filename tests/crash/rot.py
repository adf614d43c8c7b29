"""Every byte of a small store rots: the right data or an error with a name, nothing else.

The store has every kind of file: cookies, a journal file in use and a spare, entry logs that were
closed and one that was not, an index. Damage is one flipped bit of a byte, a block of 512 bytes
that became zeros, or a file that was cut. After each a bookie is opened and everything it had
promised is asked for. It may refuse to open, or say that an entry is unreadable; it must not serve
wrong bytes, deny an entry, forget a fence or let a ledger's key go.

One thing cannot be told from a power cut in the middle of a write: damage to the journal's very
last batch, while nothing stands behind it. That batch is cut off as a torn tail; so it is not
counted among the promises when the damage begins in it, and the report has a number of its own.

    python -m tests.crash --rot 0 --seed 1        (0: every byte, block and length)
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bookie_server.storage.cookie import COOKIE_NAME
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.journal.files import journal_path
from bookie_server.storage.records import FILE_HEADER_BYTES
from spark_ledger.errors import ConfigurationError, CorruptionError
from tests.crash.disk import LOST, after_power_cut
from tests.crash.promises import Promises
from tests.crash.workload import CONFIG, Workload, compact
from tests.unit.bookie_server.storage.support import JOURNAL, LEDGERS, Machine, formatted

FLIP, ZEROS, CUT = "flip", "zeros", "cut"
BLOCK_BYTES = 512
RIGHT, UNREADABLE, REFUSED = "right", "unreadable", "refused"


class Damage(NamedTuple):
    """One thing that happened to one file. ``at`` is a byte, a block's first byte, or the size
    that was left."""

    path: Path
    kind: str
    at: int


class Store(NamedTuple):
    """A disk as a power cut left it, and what was promised on it."""

    disk: MemoryFileSystem
    promises: Promises
    promises_before_last_batch: Promises
    last_batch: tuple[Path, int]


@dataclass
class RotTally:
    """What was done, for reports."""

    seed: int
    files: int = 0
    store_bytes: int = 0
    damages: int = 0
    torn_tails: int = 0
    by_outcome: Counter[str] = field(default_factory=Counter)
    by_file: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> dict[str, object]:
        """For ``--json``."""
        return {
            "seed": self.seed,
            "files": self.files,
            "store_bytes": self.store_bytes,
            "damages": self.damages,
            "in_the_last_batch": self.torn_tails,
            "by_outcome": dict(sorted(self.by_outcome.items())),
            "by_file": dict(sorted(self.by_file.items())),
        }


def small_store(seed: int) -> Store:
    """A store of every kind of file, whose newest promises are in the journal alone."""
    disk, promises = formatted(), Promises()
    workload = Workload(seed, promises)
    machine = workload.live(disk, 14, reopens=False)
    assert machine is not None
    for _flush in range(2):  # the second has journal files to give up
        _fill(machine, workload, 5)
        machine.flush()
    _fill(machine, workload, 3)
    before = deepcopy(promises)
    last_batch = _last_batch(machine, workload)
    return Store(after_power_cut(disk, LOST, random.Random(0)), promises, before, last_batch)


def _last_batch(machine: Machine, workload: Workload) -> tuple[Path, int]:
    """Make one more request that writes; the file and the offset of its last batch.

    The journal comes first, and the batch of a run log says that the journal's was synced.
    """
    before = after = machine.bookie._journal.durable_marks
    while after == before:  # a request may have nothing to write
        workload.request(machine)
        machine.settle()
        after = machine.bookie._journal.durable_marks
    logs = zip(
        (*LEDGERS, JOURNAL),
        (*before.run_logs, before.journal),
        (*after.run_logs, after.journal),
        strict=True,
    )
    for directory, was, now in logs:
        if was.sequence != now.sequence:
            is_same_file = was.file_number == now.file_number
            offset = was.offset if is_same_file else FILE_HEADER_BYTES
            return journal_path(directory, now.file_number), offset
    raise AssertionError("the request wrote nothing")


def _fill(machine: Machine, workload: Workload, steps: int) -> None:
    for _step in range(steps):
        for _request in range(3):
            workload.request(machine)
        machine.settle()


def damages_of(store: Store) -> Iterator[Damage]:
    """Every byte, every block, every length, of every file."""
    for path in _files(store.disk):
        size = store.disk.open(path).size()
        yield from (Damage(path, FLIP, at) for at in range(size))
        yield from (Damage(path, ZEROS, at) for at in range(0, size, BLOCK_BYTES))
        yield from (Damage(path, CUT, at) for at in range(size))


def rot(seed: int, *, samples: int) -> RotTally:
    """Damage a store ``samples`` times, or in every way when it is 0; AssertionError names the
    damage that was not noticed."""
    store = small_store(seed)
    choose = random.Random(f"rot {seed}")
    everything = list(damages_of(store))
    chosen = everything if samples == 0 else _sample(everything, samples, choose)
    tally = RotTally(seed, len(_files(store.disk)))
    tally.store_bytes = sum(store.disk.open(path).size() for path in _files(store.disk))
    for damage in chosen:
        tally.damages += 1
        tally.by_file[f"{_kind(damage.path)}, {damage.kind}"] += 1
        in_last_batch = _is_in_last_batch(store, damage)
        tally.torn_tails += in_last_batch
        promises = store.promises_before_last_batch if in_last_batch else store.promises
        tally.by_outcome[_outcome(damaged(store.disk, damage, choose), promises, damage)] += 1
    return tally


def _sample(everything: Sequence[Damage], samples: int, choose: random.Random) -> list[Damage]:
    """As many of each kind of file and damage, not as their sizes are."""
    groups: dict[tuple[str, str], list[Damage]] = {}
    for damage in everything:
        groups.setdefault((_kind(damage.path), damage.kind), []).append(damage)
    each = -(-samples // len(groups))
    return [
        damage
        for _name, group in sorted(groups.items())
        for damage in choose.sample(group, min(each, len(group)))
    ]


def damaged(disk: MemoryFileSystem, damage: Damage, choose: random.Random) -> MemoryFileSystem:
    """A copy of the disk with the damage."""
    copied = disk.crash_clone(None)
    file = copied.open(damage.path, writable=True)
    if damage.kind == CUT:
        copied.cut(damage.path, damage.at)
    elif damage.kind == ZEROS:
        length = min(BLOCK_BYTES, file.size() - damage.at)
        copied.damage(damage.path, damage.at, bytes(length))
    else:
        byte = file.pread(1, damage.at)[0] ^ (1 << choose.randrange(8))
        copied.damage(damage.path, damage.at, bytes([byte]))
    return copied


def _outcome(disk: MemoryFileSystem, promises: Promises, damage: Damage) -> str:
    try:
        machine = Machine(disk, CONFIG)
    except (CorruptionError, ConfigurationError) as error:
        # A cookie that names another cluster is still a cookie: any other one may be blamed.
        places = [damage.path.parent]
        if damage.path.name == COOKIE_NAME:
            places = [JOURNAL, *LEDGERS]
        named = any(str(place) in str(error) for place in places)
        assert named, f"{damage}: names no directory: {error}"
        return REFUSED
    whole = promises.check_honest(machine, f"{damage}")
    try:
        compact(machine)  # it must not drop what it cannot read, or copy what is wrong
    except (OSError, CorruptionError):
        whole = False
    whole &= promises.check_honest(machine, f"{damage}, compacted")
    return RIGHT if whole else UNREADABLE


def _is_in_last_batch(store: Store, damage: Damage) -> bool:
    """Flips and zeros that begin in it; a file that was cut has another size as well."""
    path, offset = store.last_batch
    end = damage.at + (BLOCK_BYTES if damage.kind == ZEROS else 1)
    return damage.path == path and damage.kind != CUT and end > offset


def _files(disk: MemoryFileSystem) -> list[Path]:
    directories = (JOURNAL, *LEDGERS, *(directory / "index" for directory in LEDGERS))
    return [
        directory / name
        for directory in directories
        for name in disk.list(directory)
        if disk.exists(directory / name) and name != "index"
    ]


def _kind(path: Path) -> str:
    return path.stem.split("-")[0] + path.suffix
