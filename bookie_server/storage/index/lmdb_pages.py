"""Checks the pages of an LMDB file before LMDB maps it: a damaged one would end the process.

LMDB reads its file through memory and trusts what it finds. A file that was cut is a SIGBUS, a page
of zeros an assertion in C, and a wrong list of free pages has it write over pages in use. None of
it is an error that a program could catch. So everything that the newest root can reach is read
here once, by calls that return errors: each page is inside the file, is of its kind and number,
its nodes lie inside it, no page is in two places, no free page is in use, and a search for what a
leaf has leads to that leaf. What the values say is checked by their checksums (rule S9).

The file, all numbers little endian (LMDB 0.9):

    page 0, 1   header, then a root: magic 0xBEEFC0DE (4), version 1 (4), address (8), map size
                (8), two trees (48 each; the first is of the free pages, the second of the named
                tables), last page (8), transaction (8). The higher transaction counts.
    tree        page size (4, in the first), flags (2), depth (2), pages of three kinds and entries
                (32), root page (8; all bits set: empty)
    page        number (8), unused (2), flags (2), end of the pointers (2), begin of the nodes (2),
                a pointer (2) to each node. Of an overflow page the last two are how many pages.
    node        size of the data (4), flags (2), size of the key (2), key, data. In a branch the
                first three are the page below, whose keys are at or above the node's key, and below
                that of the next node; the first node's key says nothing. Data that is too long for
                the page is the number of an overflow page, the data of a named table is its tree.
    free pages  how many (8), and the numbers (8 each), as data of the first tree
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from bookie_server.storage.index.row_proofs import CHECKSUM, sealed
from bookie_server.storage.journal.files import REPLACE_BOOKIE
from spark_ledger.errors import CorruptionError

DATA_NAME: Final = "data.mdb"
_META = struct.Struct("<16xII8xQ48s48sQQ")
_TREE = struct.Struct("<IHH32xQ")
_PAGE = struct.Struct("<QxxHHH")
_OVERFLOW = struct.Struct("<QxxHI")
_NODE = struct.Struct("<IHH")
_NUMBER = struct.Struct("<Q")
_MAGIC: Final = 0xBEEFC0DE
_VERSION: Final = 1
_FIRST_PAGE: Final = 2
_NONE: Final = 2**64 - 1
_BRANCH: Final = 1
_LEAF: Final = 2
_OVERFLOW_PAGE: Final = 4
_META_PAGE: Final = 8
_KINDS: Final = 0x6F
"""Flags that say what a page is; the others are of a running transaction."""
_BIG: Final = 1
_TABLE: Final = 2
_FREE_TREE: Final = 8
"""The keys of the first tree are numbers; no other tree has flags."""
_DEPTH_MAX: Final = 32
"""LMDB's own bound."""
_PAGE_SIZES: Final = frozenset(1 << bits for bits in range(9, 17))
assert _TREE.size == 48, "a tree in its stored form"


class _Tree(NamedTuple):
    """A tree of pages; what it holds decides what its nodes may be."""

    page_size: int
    flags: int
    depth: int
    root: int


class _Damaged(Exception):
    """What is wrong with the file."""


def check_pages(directory: Path) -> None:
    """Raise CorruptionError unless LMDB can open the file in ``directory`` and read all of it.

    A missing or empty file is a new index, and left to LMDB. Raises OSError if it cannot be read.
    """
    path = directory / DATA_NAME
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            if size:
                _Walk(descriptor, size).check()
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return
    except _Damaged as error:
        raise CorruptionError(
            f"index {directory} is damaged: {path}: {error}: {REPLACE_BOOKIE}"
        ) from error
    except OSError as error:
        raise OSError(error.errno, f"index {directory}: {path}: {error.strerror}") from error


def _key(page: bytes, node: int, tree: _Tree) -> bytes:
    """The key of a node, as bytes in whose order LMDB searches the tree."""
    key_bytes = _NODE.unpack_from(page, node)[2]
    key = page[node + _NODE.size : node + _NODE.size + key_bytes]
    return key[::-1] if tree.flags == _FREE_TREE else key


def _is_whole(page: bytes, node: int) -> bool:
    """Whether key and value of a node have the checksum that the value ends with. If not, it is the
    node that is damaged, and no page; the scrub takes it out (rule S24)."""
    size, _flags, key_bytes = _NODE.unpack_from(page, node)
    start = node + _NODE.size + key_bytes
    key, stored = page[start - key_bytes : start], page[start : start + size]
    return len(stored) >= CHECKSUM.size and stored == sealed(key, stored[: -CHECKSUM.size])


class _Walk:
    """One pass over all pages that the newest root can reach."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self._size = size
        self._page_size = 0
        self._last_page = 0
        self._seen = bytearray()

    def check(self) -> None:
        """Raise _Damaged at the first page that is wrong."""
        free, tables, self._last_page = self._newest_root()
        if (free.flags, tables.flags) != (_FREE_TREE, 0):
            raise _Damaged("a root has trees of unknown flags")
        self._page_size = free.page_size
        self._seen = bytearray(min(self._last_page + 1, self._size // self._page_size))
        for page, key_end in self._leaves(tables):
            self._check_table(page, key_end)
        numbers: list[bytes] = []
        for page, node in self._leaves(free):
            if _NODE.unpack_from(page, node)[2] != _NUMBER.size:
                raise _Damaged("a list of free pages is damaged")
            numbers.append(self._data(page, node))
        for stored in numbers:
            self._check_free(stored)

    def _newest_root(self) -> tuple[_Tree, _Tree, int]:
        """The trees of free pages and of tables, and the last page that was ever given out."""
        found: list[tuple[int, _Tree, _Tree, int]] = []
        page_size = 0
        for number in (0, 1):
            data = os.pread(self._descriptor, _META.size, number * page_size)
            if len(data) < _META.size:
                raise _Damaged(f"it was cut to {self._size} bytes")
            flags = _PAGE.unpack_from(data)[1]
            magic, version, _map_size, free, tables, last_page, transaction = _META.unpack(data)
            first = _Tree._make(_TREE.unpack(free))
            page_size = page_size or first.page_size
            is_root = (magic, version, first.page_size) == (_MAGIC, _VERSION, page_size)
            if not is_root or not flags & _META_PAGE or page_size not in _PAGE_SIZES:
                raise _Damaged(f"page {number} is no root")
            found.append((transaction, first, _Tree._make(_TREE.unpack(tables)), last_page))
        # Of two equal ones the first, as LMDB does.
        _transaction, free_tree, tables_tree, last_page = max(found, key=lambda root: root[0])
        return free_tree, tables_tree, last_page

    def _leaves(self, tree: _Tree) -> Iterator[tuple[bytes, int]]:
        """Each node of a tree's leaves: the page, and where the node is in it."""
        for page, pointers in self._leaf_pages(tree):
            for pointer in pointers:
                yield page, pointer

    def _leaf_pages(
        self, tree: _Tree, *, sealed: bool = False
    ) -> Iterator[tuple[bytes, array[int]]]:
        """The leaves of a tree with the pointers to their nodes; every page of it is checked.
        ``sealed``: its values have checksums."""
        if tree.root == _NONE:
            return
        if not 1 <= tree.depth <= _DEPTH_MAX or tree.flags not in (0, _FREE_TREE):
            raise _Damaged(f"a tree of depth {tree.depth} and flags {tree.flags}")
        below: list[tuple[int, int, bytes, bytes | None]] = [(tree.root, tree.depth, b"", None)]
        while below:
            number, level, low, high = below.pop()
            page = self._page(number)
            stored_number, flags, lower, upper = _PAGE.unpack_from(page)
            expected = _BRANCH if level > 1 else _LEAF
            if stored_number != number or flags & _KINDS != expected:
                raise _Damaged(f"page {number} is not the page of this place")
            if not _PAGE.size <= lower <= upper <= len(page) or lower % 2:
                raise _Damaged(f"page {number} has no room for its nodes")
            pointers = array("H", page[_PAGE.size : lower])
            if not pointers or min(pointers) < upper or max(pointers) + _NODE.size > len(page):
                raise _Damaged(f"a node of page {number} is outside the page")
            if level > 1:
                # LMDB's own assertion; it lets the tree of free pages be thinner.
                if len(pointers) < 2 and tree.flags != _FREE_TREE:
                    raise _Damaged(f"page {number} leads to one page only")
                begins = [low, *(_key(page, pointer, tree) for pointer in pointers[1:])]
                ends = [*begins[1:], high]
                for pointer, begin, end in zip(pointers, begins, ends, strict=True):
                    first, rest, key_bytes = _NODE.unpack_from(page, pointer)
                    if pointer + _NODE.size + key_bytes > len(page):
                        raise _Damaged(f"a node of page {number} is outside the page")
                    below.append((first | rest << 32, level - 1, begin, end))
                continue
            self._check_nodes(page, number, pointers)
            for pointer in pointers:
                if _key(page, pointer, tree) >= low:
                    break
                if not sealed or _is_whole(page, pointer):
                    raise _Damaged(f"a search would not lead to page {number}")
            for pointer in reversed(pointers):
                if high is None or _key(page, pointer, tree) < high:
                    break
                if not sealed or _is_whole(page, pointer):
                    raise _Damaged(f"a search would not lead to page {number}")
            yield page, pointers

    def _check_nodes(self, page: bytes, number: int, pointers: array[int]) -> None:
        """Raise _Damaged unless the nodes of a leaf are inside it."""
        heads = {page[pointer : pointer + _NODE.size]: pointer for pointer in sorted(pointers)}
        # Most nodes of a table have one size, and of those the last one is the one that matters.
        for head, last in heads.items():
            data_bytes, flags, key_bytes = _NODE.unpack(head)
            in_page = _NUMBER.size if flags & _BIG else data_bytes
            if last + _NODE.size + key_bytes + in_page > len(page):
                raise _Damaged(f"a node of page {number} is outside the page")

    def _check_table(self, page: bytes, node: int) -> None:
        """Check all pages of a named table."""
        _size, flags, _key_bytes = _NODE.unpack_from(page, node)
        stored = self._data(page, node)
        if not flags & _TABLE or len(stored) != _TREE.size:
            raise _Damaged("something that is no table is in the list of tables")
        for leaf, pointers in self._leaf_pages(_Tree._make(_TREE.unpack(stored)), sealed=True):
            # Values of this index are short: a long one would be damage, and is followed nowhere.
            if any(leaf[pointer + 4] or leaf[pointer + 5] for pointer in pointers):
                raise _Damaged("a table has a value that is no value of it")

    def _data(self, page: bytes, node: int) -> bytes:
        """The data of a node that is inside its page."""
        size, flags, key_bytes = _NODE.unpack_from(page, node)
        start = node + _NODE.size + key_bytes
        if not flags & _BIG:
            return page[start : start + size]
        (number,) = _NUMBER.unpack_from(page, start)
        first = self._page(number)
        stored_number, kind, count = _OVERFLOW.unpack_from(first)
        if (stored_number, kind & _KINDS) != (number, _OVERFLOW_PAGE):
            raise _Damaged(f"page {number} is not the page of this place")
        if size + _PAGE.size > count * self._page_size:
            raise _Damaged(f"page {number} is too short for its data")
        parts = [first, *(self._page(number + more) for more in range(1, count))]
        return b"".join(parts)[_PAGE.size : _PAGE.size + size]

    def _page(self, number: int) -> bytes:
        """A page that is inside the file and in no other place."""
        if not _FIRST_PAGE <= number <= self._last_page:
            raise _Damaged(f"there is no page {number}")
        if number >= len(self._seen):
            raise _Damaged(f"it has {self._size} bytes, and page {number} is behind them")
        if self._seen[number]:
            raise _Damaged(f"page {number} is in two places")
        self._seen[number] = 1
        page = os.pread(self._descriptor, self._page_size, number * self._page_size)
        if len(page) != self._page_size:
            raise _Damaged(f"page {number} was cut")
        return page

    def _check_free(self, stored: bytes) -> None:
        """Raise _Damaged unless these are the numbers of pages that nothing else uses."""
        numbers = array("Q", stored[: len(stored) // _NUMBER.size * _NUMBER.size])
        if not numbers or len(numbers) < numbers[0] + 1:
            raise _Damaged("a list of free pages is damaged")
        for number in numbers[1 : numbers[0] + 1]:
            if not _FIRST_PAGE <= number <= self._last_page:
                raise _Damaged(f"there is no page {number}")
            if number < len(self._seen) and self._seen[number]:
                raise _Damaged(f"page {number} is in use and in the list of free pages")
