"""How much unfinished work a bookie holds, and whether one more add is taken now. Pure."""

from __future__ import annotations

from enum import Enum

from bookie_server.core.disk_space import refuse_for_space
from spark_ledger.bookie_api import Refusal
from spark_ledger.limits.bookie import BOOKIE_WAITING_BYTES_MAX
from spark_ledger.types import BookieStatus


class Admission(Enum):
    """What happens to an add that nothing was decided about yet."""

    ADD = "add"
    """There is room in the write cache."""

    WAIT = "wait"
    """There will be room once the flush that is running has ended."""


def admit(
    *,
    recovery: bool,
    disk_full: str,
    is_full: bool,
    others_wait: bool,
    waiting_bytes: int,
    flush_failure: Refusal | None,
) -> Admission | Refusal:
    """Whether an add may go on.

    A disk above its high water mark (``disk_full`` says which) takes no adds of writers: they go on
    with other bookies. What a recovery copies is let into the reserve, because it may be the last
    copy, and so little that a reserve is enough for it.

    Adds of one ledger keep their order, because an acknowledgement covers all entries before it
    (rule P3). So an add waits behind others even if there is room for it by now. When the last
    flush has failed nobody knows when there will be room: the add is refused instead, so that its
    client can go on with other bookies. While there is room a failed flush refuses nobody: the
    journal still makes adds durable, and the next flush may work. When many bytes wait already, an
    add is told so at once: its client would take silence for a failure (rule P11).
    """
    if disk_full and not recovery:
        return refuse_for_space(disk_full)
    if not (is_full or others_wait):
        return Admission.ADD
    if flush_failure is not None:
        return flush_failure
    if waiting_bytes >= BOOKIE_WAITING_BYTES_MAX:
        message = f"{waiting_bytes} bytes of adds wait for the next flush: send it again later"
        return Refusal(BookieStatus.TOO_MANY_REQUESTS, message)
    return Admission.WAIT


def refuse_for_failed_flush(failure: str, *, disk_full: bool) -> Refusal:
    """The answer to an add that cannot wait for room.

    A full disk is no fault of the bookie: READ_ONLY, as above. Anything else is.
    """
    assert failure, "it says what failed"
    if disk_full:
        return refuse_for_space(f"disk full: {failure}")
    return Refusal(BookieStatus.IO_ERROR, f"flush fails: {failure}")


class BytesInFlight:
    """Bytes of adds that were accepted and are not answered.

    The service stops reading while they are above a limit. So every byte that is acquired must be
    released by exactly one answer, also by a refusal: what is never released stops all streams, and
    what is released twice lets more in than there is memory for.
    """

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0  # service thread; others may read it, for metrics

    @property
    def count(self) -> int:
        """Bytes acquired and not released."""
        return self._count

    def acquire(self, byte_count: int) -> None:
        """Account for accepted work."""
        assert byte_count >= 0
        self._count += byte_count

    def release(self, byte_count: int) -> None:
        """Account for finished work."""
        assert 0 <= byte_count <= self._count, "more is released than was acquired"
        self._count -= byte_count
