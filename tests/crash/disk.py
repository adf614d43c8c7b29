"""What a disk holds after a kill or a power cut: images of a file system in memory.

A kill keeps the page cache: what programs saw is there, and what was not synced may still be lost
by a power cut later. A power cut decides block by block, and name by name, what became of
everything that was not synced (``PowerCut`` says in which way); nothing that was synced is touched.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from bookie_server.storage.fs.memory_fs import MemoryFileSystem, _Change, _Directory, _Inode


class PowerCut(NamedTuple):
    """How unsynced bytes and names fare.

    ``block_bytes``: the unit that survives or not; 0 is everything at once. ``kept``: chance of a
    unit, and of a name, to survive. ``filler``: chance of a lost unit to become zeros or garbage
    instead of what it was. ``in_order``: names survive up to some change, as a file system's own
    journal has it, or each change for itself.
    """

    name: str
    block_bytes: int = 0
    kept: float = 0.0
    filler: float = 0.0
    in_order: bool = True


LOST = PowerCut("unsynced lost")
KEPT = PowerCut("unsynced kept", kept=1.0)
SECTORS = PowerCut("lottery of 512", 512, 0.5)
PAGES = PowerCut("lottery of 4096", 4096, 0.5, in_order=False)
ZEROS_OR_GARBAGE = PowerCut("lottery of 512, zeros, garbage", 512, 0.5, 0.6, in_order=False)
GARBAGE_PAGES = PowerCut("lottery of 4096, zeros, garbage", 4096, 0.4, 0.8)
POWER_CUTS = (LOST, KEPT, SECTORS, PAGES, ZEROS_OR_GARBAGE, GARBAGE_PAGES)


def after_kill(disk: MemoryFileSystem) -> MemoryFileSystem:
    """The machine after its process died: page cache as it was, locks gone."""
    clone = MemoryFileSystem()
    copies: dict[int, _Inode] = {}

    def copy_of(inode: _Inode) -> _Inode:
        known = copies.get(id(inode))
        if known is None:
            known = copies[id(inode)] = _Inode()
            known.data = bytearray(inode.data)
            known.durable = bytearray(inode.durable)
            known.dirty = list(inode.dirty)
            known.holes = set(inode.holes)
        return known

    for path, directory in disk._directories.items():
        copied = clone._directories[path] = _Directory()
        copied.below = set(directory.below)
        copied.entries = {name: copy_of(inode) for name, inode in directory.entries.items()}
        copied.durable = {name: copy_of(inode) for name, inode in directory.durable.items()}
        copied.unsynced = [
            _Change({n: None if i is None else copy_of(i) for n, i in change.names.items()})
            for change in directory.unsynced
        ]
    return clone


def after_power_cut(
    disk: MemoryFileSystem, cut: PowerCut, choose: random.Random
) -> MemoryFileSystem:
    """The machine after its power went: a new file system, everything in it durable."""
    clone = MemoryFileSystem()
    survivors: dict[int, _Inode] = {}
    for path, directory in sorted(disk._directories.items()):
        copied = clone._directories[path] = _Directory()
        copied.below = set(directory.below)
        for name, inode in sorted(_names(directory, cut, choose).items()):
            if id(inode) not in survivors:
                survivors[id(inode)] = _Inode(_content(inode, cut, choose))
            copied.entries[name] = survivors[id(inode)]
        copied.sync()
    return clone


def _names(directory: _Directory, cut: PowerCut, choose: random.Random) -> dict[str, _Inode]:
    entries = dict(directory.durable)
    changes = directory.unsynced
    if cut.block_bytes == 0:
        survived = list(changes) if cut.kept else []
    elif cut.in_order:
        survived = changes[: choose.randint(0, len(changes))]
    else:
        survived = [change for change in changes if choose.random() < cut.kept]
    for change in survived:
        change.apply(entries)
    return entries


def _content(inode: _Inode, cut: PowerCut, choose: random.Random) -> bytes:
    seen, durable = inode.data, inode.durable
    if cut.block_bytes == 0:
        return bytes(seen if cut.kept else durable)
    if seen == durable and not inode.dirty:
        return bytes(durable)
    size = choose.choice((len(seen), len(durable)))
    mixed = bytearray(durable[:size].ljust(size, b"\0"))
    for start in range(0, size, cut.block_bytes):
        end = min(start + cut.block_bytes, size)
        written = [(max(a, start), min(b, end)) for a, b in inode.dirty if a < end and b > start]
        block = bytes(seen[start:end]).ljust(end - start, b"\0")
        if not written and block == mixed[start:end]:
            continue
        if choose.random() < cut.kept:
            mixed[start:end] = block
        elif choose.random() < cut.filler:
            zeros = choose.random() < 0.3
            for first, behind in written:  # no byte outside what was being written is harmed
                length = behind - first
                mixed[first:behind] = bytes(length) if zeros else choose.randbytes(length)
    return bytes(mixed)
