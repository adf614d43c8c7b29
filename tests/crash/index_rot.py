"""Every byte of a real index rots: LMDB has no checksums, so this shows what ours are worth.

Each damaged copy is opened in a process of its own, because LMDB aborts where its own pages are
impossible, or reads beyond the file. The pages are checked before that, so no process ends so.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import traceback
from collections import Counter
from pathlib import Path

from bookie_server.storage.cookie import INDEX_NAME, format_directories
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from bookie_server.storage.index.lmdb_index import LmdbIndex
from spark_ledger.errors import ConfigurationError, CorruptionError
from spark_ledger.limits import KIB, MIB
from spark_ledger.types import LedgerId
from tests.crash.promises import Promises, key_of
from tests.crash.rot import BLOCK_BYTES, REFUSED, RIGHT, UNREADABLE
from tests.crash.workload import Workload
from tests.unit.bookie_server.storage.support import BOOKIE_ID, Machine, small_config

DIED, WRONG = "process ended", "wrong"
_OUTCOMES = (RIGHT, UNREADABLE, REFUSED, WRONG)
_PATIENCE_S = 20


class _OnDisk(Machine):
    """A bookie over real files."""

    def __init__(self, root: Path) -> None:
        journal, *ledgers = _directories(root)
        config = small_config(
            journal_directory=journal,
            ledger_directories=tuple(ledgers),
            write_cache_bytes=128 * KIB,
            index_map_bytes=MIB,
        )
        super().__init__(
            PosixFileSystem(),
            config,
            open_index=lambda path: LmdbIndex(path, map_bytes=MIB),  # type: ignore
        )


def _directories(root: Path) -> tuple[Path, Path, Path]:
    return root / "journal", root / "ledgers-0", root / "ledgers-1"


def rot_index(directory: Path, seed: int, *, samples: int) -> Counter[str]:
    """Damage the index of a store below ``directory``: ``samples`` bytes that are in use, or all
    of them when it is 0, and every block. Outcomes and their numbers."""
    base = directory / "base"
    promises = _make_store(base, seed)
    choose = random.Random(f"index {seed}")
    path = Path("ledgers-0") / INDEX_NAME / "data.mdb"
    data = (base / path).read_bytes()
    used = [place for place, byte in enumerate(data) if byte]
    places = used if samples == 0 else choose.sample(used, min(samples, len(used)))
    outcomes: Counter[str] = Counter()
    for place in places:
        flipped = bytearray(data)
        flipped[place] ^= 1 << choose.randrange(8)
        outcomes[_try(base, directory / "copy", path, flipped, promises, f"flip {place}")] += 1
    blocks = range(0, len(data), BLOCK_BYTES)
    for place in blocks if samples == 0 else choose.sample(blocks, min(20, len(blocks))):
        zeroed = bytearray(data)
        zeroed[place : place + BLOCK_BYTES] = bytes(BLOCK_BYTES)
        outcomes[_try(base, directory / "copy", path, zeroed, promises, f"zeros {place}")] += 1
    return outcomes


def _make_store(base: Path, seed: int) -> Promises:
    journal, *ledgers = _directories(base)
    format_directories(PosixFileSystem(), journal, ledgers, cluster_id="c", bookie_id=BOOKIE_ID)
    promises = Promises()
    workload = Workload(seed, promises)
    machine = _OnDisk(base)
    for step in range(24):
        for _request in range(4):
            workload.request(machine)
        machine.settle()
        if step % 8 == 7:
            machine.flush()
    for ledger_id in (2, 3):
        promises.fences_sent.add(ledger_id)
        assert machine.fence(ledger_id, key=key_of(ledger_id)).name == "OK"
        promises.fenced.add(ledger_id)
    machine.close()
    return promises


def _try(
    base: Path, copy: Path, path: Path, content: bytearray, promises: Promises, what: str
) -> str:
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(base, copy)
    (copy / path).write_bytes(content)
    child = os.fork()
    if child == 0:
        os._exit(_in_child(copy, promises, what))
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) != signal.SIGALRM, f"{what}: hangs"
        return DIED
    return _OUTCOMES[os.WEXITSTATUS(status)]


def _in_child(root: Path, promises: Promises, what: str) -> int:
    """The index in ``_OUTCOMES``; whatever is not foreseen is wrong, and shown."""
    logging.disable()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_PATIENCE_S)
    try:
        try:
            machine = _OnDisk(root)
        except (CorruptionError, ConfigurationError):
            return _OUTCOMES.index(REFUSED)
        whole = promises.check_honest(machine, what)
        for ledger_id in range(5):
            if machine.bookie.end_of_ledger(LedgerId(ledger_id), access_key=b"").fenced:
                assert ledger_id in promises.fences_sent, f"{what}: {ledger_id} is fenced"
    except BaseException:  # noqa: BLE001 - the parent learns the number, a reader the rest
        traceback.print_exc()
        return _OUTCOMES.index(WRONG)
    return _OUTCOMES.index(RIGHT if whole else UNREADABLE)
