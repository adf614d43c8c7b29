"""A bookie that cannot be opened says why, and leaves its directories as they were."""

from __future__ import annotations

import errno

import pytest

from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from spark_ledger.errors import ConfigurationError
from spark_ledger.types import BookieId, BookieStatus
from tests.unit.bookie_server.storage.support import (
    JOURNAL,
    Machine,
    formatted,
    small_config,
)

IO_ERROR = BookieStatus.IO_ERROR


def test_open_that_fails_releases_the_directories() -> None:
    files = formatted()
    wrong = small_config()
    object.__setattr__(wrong, "bookie_id", BookieId("somebody-else"))
    for _again in range(2):
        with pytest.raises(ConfigurationError, match="somebody-else"):
            Machine(files, wrong)
    assert Machine(files).add(7, [0]) is BookieStatus.OK


@pytest.mark.parametrize("kind", ["list", "fdatasync", "pread", "rename"])
def test_open_on_a_failing_disk_names_the_directory(kind: str) -> None:
    files = formatted()
    Machine(files).close()

    def plan(operation: Operation) -> Fault | None:
        fails = operation.kind == kind and operation.path.is_relative_to(JOURNAL)
        return Fault(errno.EIO) if fails else None

    with pytest.raises(ConfigurationError, match=f"cannot be .*{JOURNAL}"):
        Machine(FaultFileSystem(files, plan))
    assert Machine(files).add(7, [0]) is BookieStatus.OK, "it let go of its directories"


def test_open_of_directories_of_another_cluster_is_refused() -> None:
    files = formatted()
    with pytest.raises(ConfigurationError, match="another-cluster"):
        Machine(files, small_config(cluster_id="another-cluster"))
    assert Machine(files, small_config(cluster_id="test")).add(7, [0]) is BookieStatus.OK
