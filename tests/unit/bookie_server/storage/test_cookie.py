"""Cookies and locks: a bookie only starts on its own directories, once."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from bookie_server.storage.cookie import (
    COOKIE_NAME,
    Cookie,
    check_cookies,
    format_directories,
    lock_directories,
    read_cookie,
)
from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from spark_ledger.errors import ConfigurationError, CorruptionError
from spark_ledger.types import BookieId
from tests.unit.bookie_server.storage.support import JOURNAL, LEDGERS, Machine, formatted

FILES = PosixFileSystem()


def make(root: Path, **options: object) -> Cookie:
    return format_directories(
        FILES,
        root / "j",
        [root / "l0", root / "l1"],
        cluster_id="c1",
        **options,  # type: ignore[arg-type]
    )


def check(root: Path, **options: object) -> Cookie:
    return check_cookies(FILES, root / "j", [root / "l0", root / "l1"], **options)  # type: ignore[arg-type]


def test_format_makes_directories_with_one_random_id(tmp_path: Path) -> None:
    cookie = make(tmp_path / "a")
    other = make(tmp_path / "b")
    assert cookie.bookie_id != other.bookie_id and len(cookie.bookie_id) == len("bookie-") + 16
    assert check(tmp_path / "a", bookie_id=cookie.bookie_id, cluster_id="c1") == cookie
    assert cookie.role == "journal"
    assert cookie.ledger_directories == (str(tmp_path / "a/l0"), str(tmp_path / "a/l1"))
    assert read_cookie(FILES, tmp_path / "a/l1").role == "ledgers-1"
    assert make(tmp_path / "c", bookie_id=BookieId("b7")).bookie_id == "b7"


def test_directory_that_is_not_empty_is_not_formatted(tmp_path: Path) -> None:
    (tmp_path / "l1").mkdir()
    (tmp_path / "l1" / "lost+found").mkdir()
    (tmp_path / "l1" / "precious").write_text("data")
    with pytest.raises(ConfigurationError, match=r"l1 is not empty \(it holds precious\): choose"):
        make(tmp_path)
    assert not (tmp_path / "j" / COOKIE_NAME).exists(), "nothing was begun"
    (tmp_path / "l1" / "precious").unlink()
    make(tmp_path)
    with pytest.raises(ConfigurationError, match=r"not empty .* choose another, or empty it"):
        make(tmp_path)
    assert check(tmp_path), "the cookies are still there"


def test_format_refuses_directories_in_use(tmp_path: Path) -> None:
    (tmp_path / "l0").mkdir()
    locks = lock_directories(FILES, [tmp_path / "l0"])
    with pytest.raises(ConfigurationError, match="l0 is in use by another bookie process"):
        make(tmp_path)
    locks[0].release()
    make(tmp_path)


def swap(root: Path) -> None:
    (root / "l0").rename(root / "x")
    (root / "l1").rename(root / "l0")
    (root / "x").rename(root / "l1")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda root: (root / "l1" / COOKIE_NAME).unlink(), r"l1 has no bookie\.json"),
        (lambda root: (root / "j" / COOKIE_NAME).unlink(), r"j has no bookie\.json"),
        (swap, "l0 belongs to role ledgers-1, not to ledgers-0"),
    ],
)
def test_missing_and_exchanged_directories_are_named(
    tmp_path: Path, harm: Callable[[Path], None], message: str
) -> None:
    make(tmp_path)
    harm(tmp_path)
    with pytest.raises(ConfigurationError, match=message):
        check(tmp_path)


def test_wrong_ids_and_counts_are_named(tmp_path: Path) -> None:
    cookie = make(tmp_path / "a")
    other = make(tmp_path / "b")
    with pytest.raises(ConfigurationError, match=f"j belongs to bookie {cookie.bookie_id}, not"):
        check(tmp_path / "a", bookie_id=other.bookie_id)
    with pytest.raises(ConfigurationError, match="belongs to cluster c1, not to c2"):
        check(tmp_path / "a", cluster_id="c2")
    foreign = (tmp_path / "b/l0" / COOKIE_NAME).read_bytes()
    (tmp_path / "a/l0" / COOKIE_NAME).write_bytes(foreign)
    with pytest.raises(ConfigurationError, match=f"a/l0 belongs to bookie {other.bookie_id}"):
        check(tmp_path / "a")
    with pytest.raises(ConfigurationError, match="formatted with 2 ledger directories"):
        check_cookies(FILES, tmp_path / "b/j", [tmp_path / "b/l0"])
    with pytest.raises(ConfigurationError, match="all be different"):
        check_cookies(FILES, tmp_path / "b/j", [tmp_path / "b/l0"] * 2)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"bookie_id": 3}', b"\xff", b'{"\xff": 1}']
)
def test_damaged_cookies_are_named(tmp_path: Path, content: bytes) -> None:
    make(tmp_path)
    (tmp_path / "l0" / COOKIE_NAME).write_bytes(content)
    with pytest.raises(CorruptionError, match=r"l0/bookie\.json is damaged"):
        check(tmp_path)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    cookie = make(tmp_path)
    newer = msgspec.structs.replace(cookie, format_version=2)
    (tmp_path / "j" / COOKIE_NAME).write_bytes(msgspec.json.encode(newer))
    with pytest.raises(ConfigurationError, match="format version 2, this program reads 1"):
        check(tmp_path)


def test_two_bookies_on_one_disk() -> None:
    files = formatted()
    first = Machine(files)
    with pytest.raises(ConfigurationError, match=f"{JOURNAL} is in use"):
        Machine(files)
    first.close()
    Machine(files).close()


def test_a_bookie_does_not_start_without_its_directories() -> None:
    files = formatted()
    files.remove(LEDGERS[1] / COOKIE_NAME)
    with pytest.raises(ConfigurationError, match="was never formatted"):
        Machine(files)
    files = formatted()
    del files._directories[str(LEDGERS[1])]
    with pytest.raises(ConfigurationError, match="does not exist"):
        Machine(files)


def test_format_that_fails_at_any_step_leaves_no_bookie_and_is_made_again() -> None:
    changes = {"create", "pwritev", "fdatasync", "rename", "sync_directory"}
    steps_left = 0

    def plan(operation: Operation) -> Fault | None:
        nonlocal steps_left
        steps_left -= operation.kind in changes
        return Fault(errno.EIO) if steps_left == 0 and operation.kind in changes else None

    for step in itertools.count(1):
        inner = MemoryFileSystem()
        steps_left = step
        try:
            format_directories(FaultFileSystem(inner, plan), JOURNAL, LEDGERS, cluster_id="test")
        except OSError:
            assert not inner.exists(JOURNAL / COOKIE_NAME), f"step {step}: it looks like a bookie"
        if steps_left > 0:
            assert step > 15, "three directories take five each"
            return
        cookie = format_directories(inner, JOURNAL, LEDGERS, cluster_id="test")
        assert check_cookies(inner, JOURNAL, LEDGERS) == cookie
        for lock in lock_directories(inner, [JOURNAL, *LEDGERS]):
            lock.release()


def test_the_names_of_new_directories_are_durable() -> None:
    """A bookie is announced once it is formatted; a power cut may not take its directories away."""
    operations: list[tuple[str, Path]] = []

    def plan(operation: Operation) -> Fault | None:
        operations.append((operation.kind, operation.path))
        return None

    files = FaultFileSystem(MemoryFileSystem(), plan)
    format_directories(files, JOURNAL, LEDGERS, cluster_id="test")
    for directory in (JOURNAL, *LEDGERS):
        made = operations.index(("mkdir", directory))
        assert ("sync_directory", directory.parent) in operations[made:], directory
        assert ("sync_directory", directory) in operations[made:]


@pytest.mark.parametrize("besides", [[], ["start.json"], ["index"], ["entries-0.log"]])
@pytest.mark.parametrize("bookie_id", ["b1", "b2"])
def test_only_a_lone_cookie_of_the_same_id_is_what_a_killed_format_left(
    tmp_path: Path, besides: list[str], bookie_id: str
) -> None:
    make(tmp_path, bookie_id=BookieId("b1"))
    (tmp_path / "j" / COOKIE_NAME).unlink()
    for name in besides:
        (tmp_path / "l1" / name).touch()
    if besides or bookie_id != "b1":
        with pytest.raises(ConfigurationError, match="is not empty"):
            make(tmp_path, bookie_id=BookieId(bookie_id))
        return
    assert make(tmp_path, bookie_id=BookieId(bookie_id)) == check(tmp_path)
