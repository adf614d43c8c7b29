"""Real bookies on real, small file systems that somebody else fills: in five layouts, and as a
cluster. Everything acknowledged stays readable, nothing has to be restarted, and a bookie takes
entries again by itself.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

import spark_ledger
from spark_ledger.errors import LedgerError, NotEnoughBookiesError
from spark_ledger.limits import KIB, MIB
from spark_ledger.stream.blocking import StreamConnection
from spark_ledger.types import BookieState
from tests.effort import FULL_DISK_LAYOUTS, in_shares
from tests.integration.test_bookie_process import Process

pytestmark = pytest.mark.processes

DISK_BYTES: Final = 40 * MIB
RESERVE_BYTES: Final = 8 * MIB
PAYLOAD: Final = b"x" * (32 * KIB)
LONGEST_S: Final = 30.0
"""A bound of a hang, on a machine that is busy."""


class Layout(NamedTuple):
    """Which directories share a disk. The first disk is the one that fills up."""

    name: str
    disks: tuple[tuple[str, ...], ...]


LAYOUTS: Final = (
    Layout("one disk for all", (("journal", "l0", "l1"),)),
    Layout("journal alone", (("journal",), ("l0", "l1"))),
    Layout("ledgers alone", (("l0", "l1"), ("journal",))),
    Layout("one of two ledger directories", (("l0",), ("journal",), ("l1",))),
    Layout("journal beside one ledger directory", (("journal", "l0"), ("l1",))),
)


class Disks:
    """Small file systems in memory."""

    def __init__(self, root: Path, undo: ExitStack) -> None:
        self._root = root
        self._undo = undo
        self._count = 0

    def make(self) -> Path:
        """Another one; where it is mounted."""
        path = self._root / f"disk-{self._count}"
        self._count += 1
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"file systems cannot be mounted here: {made.stderr.strip()}")
        self._undo.callback(subprocess.run, ["umount", "--lazy", str(path)], check=False)
        return path


def fill(disk: Path, *, left: int = 0) -> None:
    """Be a stranger: leave only so much free."""
    with (disk / "stranger").open("ab") as stranger:
        while True:
            space = os.statvfs(disk)
            size = os.fstat(stranger.fileno()).st_size + space.f_bavail * space.f_frsize - left
            try:
                return os.posix_fallocate(stranger.fileno(), 0, size)
            except OSError as error:  # the bookie may have taken some since we looked
                assert error.errno == errno.ENOSPC, error


def free(disk: Path) -> None:
    (disk / "stranger").unlink()


class SmallBookie(Process):
    """A bookie whose directories are on small disks."""

    def __init__(self, directory: Path, uri: str, disks: Disks, layout: Layout, name: str) -> None:
        directory.mkdir()
        self.name = name
        self.places: dict[str, Path] = {}
        self.disk = Path()
        for names in reversed(layout.disks):
            self.disk = disks.make()  # the first of the layout is made last
            self.places |= {each: self.disk / each for each in names}
        super().__init__(directory, uri)

    def write_config(self, uri: str, extra: str = "") -> None:
        self.config.write_text(
            f'metadata = "{uri}"\nsession_timeout_s = 2.0\nbookie_id = "{self.name}"\n{extra}\n'
            "[listen]\nport = 0\n[admin]\nport = 0\n[storage]\n"
            f'journal_directory = "{self.places["journal"]}"\n'
            f'ledger_directories = ["{self.places["l0"]}", "{self.places["l1"]}"]\n'
            f"journal_file_bytes = {MIB}\nwrite_cache_bytes = {4 * MIB}\n"
            f"disk_reserve_bytes = {RESERVE_BYTES}\ndisk_check_interval_s = 0.2\n"
            "flush_interval_s = 0.5\n"
        )


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Disks]:
    with ExitStack() as undo:
        yield Disks(tmp_path, undo)


@pytest.fixture
def bookies() -> Iterator[list[SmallBookie]]:
    """Those that a test starts; what still runs at the end is killed."""
    made: list[SmallBookie] = []
    yield made
    for bookie in made:
        if bookie.process is not None:
            if bookie.process.poll() is None:
                bookie.process.kill()
            bookie.process.communicate()


@pytest.fixture
def client(metadata_uri: str) -> Iterator[StreamConnection]:
    with spark_ledger.connect(metadata_uri, add_timeout_s=5.0, metadata_timeout_s=5.0) as made:
        yield made


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LONGEST_S
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.05)


def states(client: StreamConnection) -> dict[str, BookieState]:
    """What running clients see of the bookies."""
    return {info.bookie_id: info.state for info in client.list_bookies()}


def is_at(client: StreamConnection, address: str) -> bool:
    return [info.address for info in client.list_bookies()] == [address]


def full_directories(ready: dict[str, Any]) -> list[str]:
    """What the bookie itself says of its disks."""
    return [name for name, state in status(ready)["directories"].items() if state["full"]]


def status(ready: dict[str, Any]) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{ready['admin_address']}/status") as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def read_all(client: StreamConnection, ledger_id: int, at_least: int, *, recover: bool) -> None:
    reader = client.open_ledger(ledger_id, recover=recover)
    if recover:
        assert reader.last_add_confirmed >= at_least - 1
    if at_least:
        found = [entry.payload for entry in reader.read(0, at_least - 1)]
        assert found == [PAYLOAD] * at_least


def append_until_refused(client: StreamConnection, most: int) -> tuple[int, int]:
    """A new ledger on one bookie, and how many entries it took."""
    writer = client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
    count = 0
    try:
        for _entry in range(most):
            writer.append(PAYLOAD)
            count += 1
    except LedgerError:
        pass
    return writer.ledger_id, count


@pytest.mark.parametrize(
    "layout",
    in_shares(LAYOUTS, FULL_DISK_LAYOUTS),
    ids=lambda layout: layout.name.replace(" ", "-"),
)
def test_disk_that_is_filled_and_freed(
    layout: Layout,
    tmp_path: Path,
    metadata_uri: str,
    disks: Disks,
    bookies: list[SmallBookie],
    client: StreamConnection,
) -> None:
    bookie = SmallBookie(tmp_path / "b", metadata_uri, disks, layout, "b")
    bookies.append(bookie)
    bookie.start("--format")
    ready = bookie.await_ready()
    until(lambda: states(client) == {"b": BookieState.WRITABLE}, "registered")
    before = [append_until_refused(client, 20) for _ledger in range(2)]
    assert [count for _, count in before] == [20, 20]
    open_ones = [
        client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) for _ in range(2)
    ]
    for writer in open_ones:
        writer.append(PAYLOAD)
    until(lambda: any(bookie.places["journal"].glob("*.free")), "the next file is prepared")
    fill(bookie.disk)
    is_one_of_two = "l1" not in layout.disks[0] and "journal" not in layout.disks[0]
    full = BookieState.WRITABLE if is_one_of_two else BookieState.READ_ONLY
    until(lambda: states(client) == {"b": full}, "registered as it is")
    until(lambda: bool(full_directories(ready)), "it looks at its disks")
    is_first = layout is LAYOUTS[0]  # the others are stopped in order, which takes less time
    for how in (None, signal.SIGKILL if is_first else signal.SIGTERM):
        assert bookie.process is not None and bookie.process.poll() is None
        if how is not None:
            bookie.end(how)
            bookie.start()
            ready = bookie.await_ready()
            until(partial(is_at, client, ready["address"]), "it is back")
        until(lambda: states(client) == {"b": full}, "registered as it is")
        assert set(full_directories(ready)) == {str(bookie.places[n]) for n in layout.disks[0]}
        for ledger_id, count in before:
            read_all(client, ledger_id, count - 1, recover=False)
    # The prepared files of the journal are enough for a recovery, which fences.
    for writer in open_ones:
        read_all(client, writer.ledger_id, 1, recover=True)
    free(bookie.disk)
    until(lambda: states(client) == {"b": BookieState.WRITABLE}, "writable by itself")
    until(lambda: not full_directories(ready), "all of it")
    after = [append_until_refused(client, 20) for _ledger in range(2)]
    assert [count for _, count in after] == [20, 20]
    for ledger_id, count in (*before, *after):
        read_all(client, ledger_id, count, recover=True)


def test_bookie_whose_output_is_on_its_full_disk_starts_and_stops(
    tmp_path: Path,
    metadata_uri: str,
    disks: Disks,
    bookies: list[SmallBookie],
    client: StreamConnection,
) -> None:
    """Its log and its ready file take the last block, as with everything on one disk."""
    bookie = SmallBookie(tmp_path / "b", metadata_uri, disks, LAYOUTS[0], "b")
    bookies.append(bookie)
    bookie.log, bookie.ready_file = bookie.disk / "log", bookie.disk / "ready.json"
    bookie.start("--format")
    bookie.await_ready()
    until(lambda: states(client) == {"b": BookieState.WRITABLE}, "registered")
    ledger_id, count = append_until_refused(client, 20)
    bookie.end(signal.SIGKILL)
    until(lambda: not states(client), "its session ends")
    bookie.ready_file.unlink()
    fill(bookie.disk)
    with suppress(OSError), bookie.log.open("ab", buffering=0) as log:
        while True:
            log.write(b"x" * KIB)
    bookie.start(output=bookie.log)
    until(bookie.ready_file.exists, "it serves")
    assert bookie.ready_file.read_bytes() == b""
    until(lambda: states(client) == {"b": BookieState.READ_ONLY}, "registered as it is")
    read_all(client, ledger_id, count - 1, recover=False)
    assert bookie.end() == 0
    bookie.start(output=bookie.log)
    until(bookie.ready_file.exists, "it serves")
    free(bookie.disk)
    until(lambda: states(client) == {"b": BookieState.WRITABLE}, "writable by itself")
    assert bookie.end() == 0


def test_full_ledger_directory_does_not_hold_up_what_makes_room(
    tmp_path: Path,
    metadata_uri: str,
    disks: Disks,
    bookies: list[SmallBookie],
    client: StreamConnection,
) -> None:
    """It is the first one, in which the bookie keeps its mark."""
    bookie = SmallBookie(tmp_path / "b", metadata_uri, disks, LAYOUTS[3], "b")
    bookies.append(bookie)
    bookie.write_config(metadata_uri, "[collection]\ninterval_s = 5.0\npause_s = 0.2")
    bookie.start("--format")
    ready = bookie.await_ready()
    until(lambda: "b" in states(client), "registered")
    ledgers = [append_until_refused(client, 20)[0] for _ledger in range(4)]
    until((bookie.places["l0"] / "collection.json").exists, "marked")
    fill(bookie.disk)
    until(lambda: bool(full_directories(ready)), "it looks at its disks")
    for ledger_id in ledgers:
        client.delete_ledger(ledger_id)
    until(lambda: status(ready)["ledgers"] == 2, "those of the other one are gone")
    free(bookie.disk)
    until(lambda: status(ready)["ledgers"] == 0, "all are")


def test_writer_fills_its_own_disk_and_every_entry_is_kept(
    tmp_path: Path,
    metadata_uri: str,
    disks: Disks,
    bookies: list[SmallBookie],
    client: StreamConnection,
) -> None:
    """Nobody else is on the disk: the reserve is what stops the writer."""
    bookie = SmallBookie(tmp_path / "b", metadata_uri, disks, LAYOUTS[0], "b")
    bookies.append(bookie)
    bookie.start("--format")
    bookie.await_ready()
    until(lambda: "b" in states(client), "registered")
    ledger_id, count = append_until_refused(client, 2 * DISK_BYTES // len(PAYLOAD))
    assert MIB < count * len(PAYLOAD) < DISK_BYTES
    space = os.statvfs(bookie.disk)
    assert space.f_bavail > 0, "the reserve is not eaten up"
    assert client.open_ledger(ledger_id, recover=True).last_add_confirmed == count - 1
    read_all(client, ledger_id, count, recover=False)


def test_cluster_whose_disks_fill_up_one_after_the_other(
    tmp_path: Path,
    metadata_uri: str,
    disks: Disks,
    bookies: list[SmallBookie],
    client: StreamConnection,
) -> None:
    for number in range(4):
        name = f"b{number}"
        bookie = SmallBookie(tmp_path / name, metadata_uri, disks, LAYOUTS[0], name)
        bookies.append(bookie)
        bookie.start("--format")
    for bookie in bookies:
        bookie.await_ready()
    until(lambda: len(states(client)) == 4, "registered")
    writer = client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    for _entry in range(10):
        writer.append(PAYLOAD)
    abandoned = client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    for _entry in range(10):
        abandoned.append(PAYLOAD)
    first = writer.metadata.last_fragment.bookies[0]
    (victim,) = (bookie for bookie in bookies if bookie.name == first)
    fill(victim.disk, left=RESERVE_BYTES // 2)
    for _entry in range(50):
        writer.append(PAYLOAD)
    until(lambda: states(client)[first] is BookieState.READ_ONLY, "the full one says so")
    writer.append(PAYLOAD)
    assert first not in writer.metadata.last_fragment.bookies
    for bookie in bookies:
        if bookie is not victim:
            fill(bookie.disk, left=RESERVE_BYTES // 2)
    until(lambda: set(states(client).values()) == {BookieState.READ_ONLY}, "all are full")
    with pytest.raises(NotEnoughBookiesError, match=r"read-only.*disk full"):
        client.create_ledger()
    with pytest.raises(NotEnoughBookiesError):
        for _entry in range(10):
            writer.append(PAYLOAD)
    read_all(client, writer.ledger_id, 61, recover=True)
    read_all(client, abandoned.ledger_id, 10, recover=True)
    for bookie in bookies:
        free(bookie.disk)
        assert bookie.process is not None and bookie.process.poll() is None
    until(lambda: set(states(client).values()) == {BookieState.WRITABLE}, "by itself")
    with client.create_ledger() as again:
        again.append(PAYLOAD)
