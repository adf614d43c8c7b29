"""All logs of a bookie: which one each record goes to, and up to where each is durable.

There is one journal, and a *run log* in each ledger directory: the same form, for runs that are
written once (rule S16). A batch of the committer is written to the journal first, then to run logs,
one after the other, and is durable once all of them are. A run log that has no room, or whose disk
has failed, leaves its runs to the journal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from bookie_server.storage.blocks import Block
from bookie_server.storage.journal.batch_log import BatchLog, WrittenBatch
from bookie_server.storage.journal.mark import Mark, Marks
from bookie_server.storage.journal.supply import NoRoomError
from bookie_server.storage.journal.waiting import JournalStats, Waiting
from bookie_server.storage.journal.witness import JOURNAL_LOG, run_log_number, witness_body
from bookie_server.storage.records import RECORD_HEADER_BYTES, RecordType
from spark_ledger.limits import GIB
from spark_ledger.types import LedgerId

logger = logging.getLogger(__name__)

_RETRY_AFTER_BATCHES: Final = 1000
"""Batches that go to the journal after a run log found no room, before it is tried again."""


RUN_LOG_FILE_BYTES_MAX: Final = GIB
"""Longest file of a run log: the index has 32 bits for the offset of a run."""


class DurableMarks(NamedTuple):
    """The marks behind the last durable batches of all logs, at one moment."""

    journal: Mark
    run_logs: tuple[Mark, ...]

    def of(self, directory: int) -> Marks:
        """Those that count for a ledger directory."""
        run_log = self.run_logs[directory] if self.run_logs else None
        has_run_log = run_log is not None and run_log.file_number > 0
        return (
            self.journal if self.journal.file_number else None,
            run_log if has_run_log else None,
        )


class RunLog:
    """The run log of one ledger directory; *committer*.

    ``has_room`` says whether its disk may give up another file: the reserve is for others.
    """

    def __init__(self, log: BatchLog, has_room: Callable[[], bool]) -> None:
        self.log = log
        self._has_room = has_room
        self.is_left = False
        self._skips = 0

    def write(self, records: Sequence[tuple[int, Block]]) -> WrittenBatch | None:
        """Write and sync a batch; None if it has to go to the journal.

        A batch that failed may have become durable all the same. Then it is stored twice, which is
        harmless (rule S8). But nothing is written behind it in this run (rule S3).
        """
        if self.is_left:
            return None
        if self._skips or (self.log.needs_file(records) and not self._has_room()):
            self._skips = max(0, self._skips - 1)
            return None
        try:
            return self.log.write(records)
        except NoRoomError as error:
            self._skips = _RETRY_AFTER_BATCHES
            logger.warning("%s: large runs go to the journal: %s", self.log.directory, error)
        except OSError as error:
            self.is_left = True
            logger.warning(
                "%s: its run log is left until the next start, large runs go to the journal: %s",
                self.log.directory,
                error,
            )
        return None

    def close(self) -> None:
        """Close the file."""
        self.log.close(in_order=not self.is_left)


class Logs:
    """The journal's log and the run logs. *Committer*, but for what says "any thread"."""

    def __init__(self, journal: BatchLog, run_logs: Sequence[RunLog]) -> None:
        # Any thread: never changed.
        self.journal = journal
        self._run_logs = tuple(run_logs)
        # Committer. By log: what its batches have told of the others.
        self._told: dict[int, dict[int, int]] = {}
        self.idle_since = 0.0
        # Any thread reads. The committer replaces them whole and never changes one, so a reader
        # sees the values of one moment.
        self.stats = JournalStats(0, 0, 0, 0.0, 0.0, 0, 0)
        self.in_doubt: frozenset[LedgerId] = frozenset()
        """Ledgers of batches that failed in a run log, and that a start may find there."""
        self.writing_in = journal.directory
        """Where it writes and syncs now, or did last: if that takes long, its disk hangs."""
        self.marks = self._marks()

    def roll(self) -> None:
        """Make the journal's next file before there is a batch for it. Raises as ``write``."""
        try:
            self.journal.roll()
        finally:
            self.marks = self._marks()

    def write(self, batch: Sequence[Waiting], tell: Callable[[Sequence[Waiting]], None]) -> None:
        """Make all records durable, each in its log.

        ``tell`` is called with those of the journal while large runs are still to be written: who
        waits for a small add need not wait for megabytes of others. It is not told of a record of
        a ledger that has a run among them, as its client takes an answer for all before it.
        Raises NoRoomError if the journal has no room for what goes there: the rest may be durable.
        Raises another OSError if the journal's disk fails.
        """
        placed: dict[int, list[Waiting]] = {}
        others: list[Waiting] = []
        for waiting in batch:
            place = waiting.place
            if place is None or not self._run_logs:
                others.append(waiting)
            elif not place.is_settled:  # it is, if it was refused after it had become durable
                placed.setdefault(place.directory, []).append(waiting)
        # The journal first: no run is durable before the access key of its ledger is.
        if others:
            self._write_to_journal(others)
            if placed:
                behind = {each.ledger for runs in placed.values() for each in runs}
                tell([each for each in others if each.ledger not in behind])
        for directory, runs in placed.items():
            if not self._write_to_run_log(directory, runs):
                self._write_to_journal(runs)

    def close(self, *, in_order: bool) -> None:
        """Close the files; ``in_order``: the journal has not failed."""
        self.journal.close(in_order=in_order)
        for run_log in self._run_logs:
            run_log.close()

    def _write_to_journal(self, batch: Sequence[Waiting]) -> None:
        """Make records durable in the journal. A run among them has no place of its own any more:
        the flush copies it to an entry log, as it does with small ones."""
        records, witnessed = self._with_witness(JOURNAL_LOG, batch)
        self.writing_in = self.journal.directory
        try:
            written = self.journal.write(records)
            for waiting in batch:
                if waiting.place is not None:
                    waiting.place.settle(None)
            self._count(written, len(batch), run_log=False)
            self._told.setdefault(JOURNAL_LOG, {}).update(witnessed)
        finally:
            # Only now: a checkpoint that saw the mark before the sync would cover, and let go, a
            # batch that the disk may still lose.
            self.marks = self._marks()

    def _write_to_run_log(self, directory: int, runs: Sequence[Waiting]) -> bool:
        """Make runs durable in a run log, and settle their places; False if it does not take them.

        Nobody reads a place before its run is synced: a row that points to it would name bytes that
        a power cut can still take back.
        """
        number, run_log = run_log_number(directory), self._run_logs[directory]
        records, witnessed = self._with_witness(number, runs)
        self.writing_in = run_log.log.directory
        was_left = run_log.is_left
        written = run_log.write(records)
        if written is None:
            if run_log.is_left and not was_left:
                self.in_doubt = self.in_doubt.union(each.ledger_id for each in runs)
            return False
        offset = written.start.offset
        for record_type, body in records:
            if record_type == RecordType.WITNESS:
                offset += RECORD_HEADER_BYTES + body.length
        for waiting in runs:
            assert waiting.place is not None, "a run log takes runs that have a place"
            waiting.place.settle((written.start.file_number, offset))
            offset += RECORD_HEADER_BYTES + waiting.body.length
        self._count(written, len(runs), run_log=True)
        self._told.setdefault(number, {}).update(witnessed)
        self.marks = self._marks()  # behind the places (rule S16)
        return True

    def _with_witness(
        self, number: int, batch: Sequence[Waiting]
    ) -> tuple[list[tuple[int, Block]], dict[int, int]]:
        """The records of a batch for a log, and what they tell of other logs for the first time."""
        told = self._told.get(number, {})
        news: dict[int, int] = {}
        if number != JOURNAL_LOG and self.journal.end.sequence > told.get(JOURNAL_LOG, 0):
            news[JOURNAL_LOG] = self.journal.end.sequence
        for directory, run_log in enumerate(self._run_logs):
            other, sequence = run_log_number(directory), run_log.log.end.sequence
            if other != number and sequence > told.get(other, 0):
                news[other] = sequence
        records: list[tuple[int, Block]] = [(each.record_type, each.body) for each in batch]
        if news:
            records.insert(0, (RecordType.WITNESS, witness_body(news)))
        return records, news

    def _count(self, written: WrittenBatch, records: int, *, run_log: bool) -> None:
        self.idle_since = written.sync_ended
        elapsed = written.sync_ended - written.sync_began
        size = written.end.offset - written.start.offset
        old = self.stats
        self.stats = old._replace(
            records=old.records + records,
            batches=old.batches + 1,
            bytes_written=old.bytes_written + (0 if run_log else size),
            run_log_bytes=old.run_log_bytes + (size if run_log else 0),
            sync_time_s=old.sync_time_s + elapsed,
            last_sync_s=elapsed,
        )

    def _marks(self) -> DurableMarks:
        return DurableMarks(self.journal.end, tuple(run_log.log.end for run_log in self._run_logs))
