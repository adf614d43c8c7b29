"""Outages that do not end: each wait has one budget from its first failure on, and then raises."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import pytest

from connector import retry, sessions
from connector.options import read_options
from connector.read.partitions import LedgerPartition, StreamPartition, StreamSpan
from connector.read.stream_source import StreamSource
from connector.read.task import read_partition
from connector.schema import LEDGER_SCHEMA
from connector.write import prepare, task
from connector.write.routed import open_parts
from connector.write.routed_task import Part
from connector.write.task import write_segments
from spark_ledger.errors import (
    BookieUnavailableError,
    ConfigurationError,
    LedgerError,
    NoSuchStreamError,
    NotEnoughBookiesError,
)
from spark_ledger.limits.connector import METADATA_LAG_S, RETRY_IN_TASK_S, RETRY_PAUSES_S
from spark_ledger.stream.model import SegmentRange
from spark_ledger.stream.plan.partitions import Plan, Span
from spark_ledger.types import Dlsn, EntryId, LedgerId
from tests.unit.connector.fakes import FakeStream, make_segment
from tests.unit.connector.world import ROWS, Clock, table, to_read, to_write


class Outage(Clock):
    """A clock whose pauses end the test if one budget has begun anew."""

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        assert sum(self.pauses) < 10 * RETRY_IN_TASK_S, "it waits without end"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Outage:
    made = Outage()
    monkeypatch.setattr(retry, "time", made)
    return made


def read_of_ranges() -> None:
    part = SegmentRange(make_segment(0, (1,)), (0, 0), (1, 0), 0, 0)
    list(read_partition(to_read(), ROWS, StreamPartition("id", Plan((part,), 0))))


def read_of_span() -> None:
    span = Span(range(1), Dlsn(0), Dlsn(1), 0)
    list(read_partition(to_read(), ROWS, StreamSpan("id", span)))


def read_of_ledger() -> None:
    options = read_options({"metadata": "zk://h/l", "ledgerId": "5"}, streaming=True)
    partition = LedgerPartition(LedgerId(5), EntryId(0), EntryId(9), 0)
    list(read_partition(options, LEDGER_SCHEMA, partition))


def write_of_rows() -> None:
    write_segments(to_write(), "id", iter(table(1).to_batches()), None)


def commit_to_streams() -> None:
    open_parts(to_write(), [Part(name, "id", ()) for name in "abc"])


def plan_behind_the_end() -> None:
    offset = {"segment": 5, "entry": 0, "stream": "fake"}
    StreamSource(to_read(), FakeStream()).plan(offset, {**offset, "segment": 6})  # type: ignore[arg-type]


def new_stream() -> None:
    prepare._wait_for_bookies(to_write())


@pytest.mark.parametrize(
    ("work", "error", "budget_s"),
    [
        (read_of_ranges, BookieUnavailableError, RETRY_IN_TASK_S),
        (read_of_span, BookieUnavailableError, RETRY_IN_TASK_S),
        (read_of_ledger, BookieUnavailableError, RETRY_IN_TASK_S),
        (write_of_rows, BookieUnavailableError, RETRY_IN_TASK_S),
        (commit_to_streams, NoSuchStreamError, METADATA_LAG_S),
        (plan_behind_the_end, ConfigurationError, METADATA_LAG_S),
        (new_stream, NotEnoughBookiesError, RETRY_IN_TASK_S),
    ],
)
def test_outage_that_does_not_end_is_waited_for_as_long_as_its_budget(
    clock: Outage,
    monkeypatch: pytest.MonkeyPatch,
    work: Callable[[], None],
    error: type[LedgerError],
    budget_s: float,
) -> None:
    def down(*given: Any, **named: Any) -> NoReturn:
        raise error("down")

    class NoBookies:
        def list_bookies(self) -> list[object]:
            return []

    for name in ("present_stream", "ledger_reader", "segment_writer", "stream"):
        monkeypatch.setattr(sessions, name, down)
    monkeypatch.setattr(sessions, "connection", lambda _options: NoBookies())
    with pytest.raises(error):
        work()
    assert budget_s - RETRY_PAUSES_S[-1] < sum(clock.pauses) <= budget_s
    assert clock.pauses == [*RETRY_PAUSES_S, *10 * RETRY_PAUSES_S[-1:]][: len(clock.pauses)]


def test_streams_of_one_commit_share_the_wait_for_a_server_that_lags(
    clock: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is found at last, and yet a hundred of them are no reason to wait a hundred times."""
    left = dict.fromkeys("abc", 3)
    looks: list[str] = []

    def lagging(_options: object, name: str, stream_id: str) -> str:
        looks.append(name)
        left[name] -= 1
        if left[name] >= 0:
            raise NoSuchStreamError(f"stream {name!r} does not exist")
        return name

    monkeypatch.setattr(sessions, "stream", lagging)
    with pytest.raises(NoSuchStreamError, match="'b'"):
        open_parts(to_write(), [Part(name, "id", ()) for name in "abc"])
    assert sum(clock.pauses) <= METADATA_LAG_S
    assert looks == [*"aaaa", *"bb"]


def test_write_in_an_outage_of_bookies_is_begun_anew_for_each_try(
    clock: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that came from Spark before are offered again, all of them and in their order."""
    offered: list[list[int]] = []

    class Writer:
        def write(self, batch: Any, *, merge_schema: object) -> None:
            offered[-1] += batch.column("a").to_pylist()
            if offered[-1][-1] == len(offered) + 1:
                raise NotEnoughBookiesError("down")

        def finish(self) -> list[object]:
            return []

        def abandon(self) -> None:
            pass

    def writer(*given: Any, **named: Any) -> Writer:
        offered.append([])
        return Writer()

    def rows() -> Iterator[Any]:
        for row in (1, 2, 3):
            yield from table(row).to_batches()

    monkeypatch.setattr(sessions, "segment_writer", writer)
    assert write_segments(to_write(), "id", rows(), None) == ()
    assert offered == [[1, 2], [1, 2, 3], [1, 2, 3]]
    assert clock.pauses == list(RETRY_PAUSES_S[:2])


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("spare_bytes", [0, -1])
def test_rows_are_offered_again_only_if_all_of_them_could_be_kept(
    clock: Outage, monkeypatch: pytest.MonkeyPatch, batches: int, spare_bytes: int
) -> None:
    """Also the first batch counts, which may be all there is."""
    rows = [batch for n in range(batches) for batch in table(*range(n, n + 9)).to_batches()]
    kept = sum(batch.nbytes for batch in rows) + spare_bytes
    monkeypatch.setattr(task, "TASK_KEPT_BYTES_MAX", kept)
    offered: list[int] = []

    def write_once(given: Iterable[Any]) -> str:
        offered.append(sum(1 for _ in given))
        if len(offered) == 1:
            raise NotEnoughBookiesError("down")
        return "done"

    if spare_bytes < 0:
        with pytest.raises(NotEnoughBookiesError):
            task.written_with_retries("stream 's'", iter(rows), write_once, "nothing")
        assert offered == [batches] and not clock.pauses
    else:
        assert task.written_with_retries("stream 's'", iter(rows), write_once, "nothing") == "done"
        assert offered == [batches] * 2
