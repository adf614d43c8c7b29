"""Closing a journal whose thread is at work."""

from __future__ import annotations

import threading

from bookie_server.storage.fs.fault_fs import FaultFileSystem, Operation
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from spark_ledger.types import BookieStatus
from tests.unit.bookie_server.storage.journal.test_journal import DIRECTORY, Writer


def test_close_waits_for_the_sync_that_the_thread_is_in() -> None:
    files = MemoryFileSystem()
    files.mkdir(DIRECTORY)
    syncing, go_on = threading.Event(), threading.Event()

    def plan(operation: Operation) -> None:
        if operation.kind == "fdatasync" and threading.current_thread().name == "journal":
            syncing.set()
            assert go_on.wait(10)

    writer = Writer(FaultFileSystem(files, plan))
    writer.journal.start()
    writer.append(1)
    assert syncing.wait(10)
    closing = threading.Thread(target=writer.journal.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive(), "the file is in use"
    go_on.set()
    closing.join(10)
    writer.run_posted()
    assert writer.answers == {1: BookieStatus.OK} and not writer.fatal
