"""The bells by which the threads of a journal wake each other."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from bookie_server.storage.blocks import Block
from bookie_server.storage.journal.bell import Bell
from bookie_server.storage.journal.waiting import HandedBatch, Waiting
from bookie_server.storage.records import RecordType
from tests.unit.bookie_server.storage.journal.support import Writer, journal_directory


@pytest.fixture
def bell() -> Iterator[Bell]:
    bell = Bell()
    bell.open()
    yield bell
    bell.close()


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_ring_before_anybody_waits_is_not_lost(bell: Bell) -> None:
    bell.ring()
    assert bell.rings_within(10)
    bell.take()
    assert not bell.rings_within(0)


def test_ring_wakes_the_thread_that_sleeps(bell: Bell) -> None:
    thread = threading.Thread(target=bell.take, daemon=True)
    thread.start()
    bell.ring()
    thread.join(timeout=10)
    assert not thread.is_alive()


def test_close_of_a_bell_gives_its_descriptors_back() -> None:
    before = _descriptors()
    bell = Bell()
    bell.close()
    bell.open()
    assert _descriptors() == before + 2
    bell.close()
    bell.close()
    assert _descriptors() == before


def test_batch_that_is_back_leaves_no_ring_behind(bell: Bell) -> None:
    """It would end the wait for the next batch before that is back."""
    durable = [Waiting(RecordType.FENCE, Block((b"",), 0, 0), None)]
    for _ in range(2):
        handed = HandedBatch(bell)
        handed.hand_back(durable)
        handed.ring()
        handed.wait(10)
        assert handed.take_back() == durable
        assert not bell.rings_within(0)


def test_batch_that_is_not_back_is_not_waited_for_twice(bell: Bell) -> None:
    handed = HandedBatch(bell)
    handed.wait(0)
    assert handed.take_back() == []


def test_closed_journal_gives_its_descriptors_back() -> None:
    before = _descriptors()
    writer = Writer(journal_directory())
    writer.journal.start()
    writer.append(1)
    writer.journal.close()
    assert _descriptors() == before
