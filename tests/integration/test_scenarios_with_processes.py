"""Scenarios of the protocol with real processes, through the public names only.

All tests share one cluster of five bookies, and repair what they kill or pause. They check what an
application can see: ids, errors, last add confirmed, fragments, bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

import spark_ledger
from spark_ledger.client.blocking import BlockingReader
from spark_ledger.client.blocking_writer import BlockingWriter
from spark_ledger.errors import (
    BookieUnavailableError,
    ConfigurationError,
    EnsembleLostError,
    FencedError,
    LedgerClosedError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    NotFoundError,
    OutcomeUnknownError,
    ReadBeyondConfirmedError,
    RecoveryError,
    RetryableError,
    UnauthorizedError,
)
from spark_ledger.local import LocalCluster
from spark_ledger.stream.blocking import StreamConnection

pytestmark = pytest.mark.processes

BOOKIES = 5
WAIT_S = 20.0
SHORT_TIMES = {"add_timeout_s": 2.0, "read_timeout_s": 2.0}


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalCluster]:
    with LocalCluster(bookies=BOOKIES) as started:
        yield started


@pytest.fixture
def cluster(shared: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster, with all of its bookies running before and after."""
    yield shared
    dead = [index for index in range(BOOKIES) if not shared.is_bookie_running(index)]
    for index in set(range(BOOKIES)) - set(dead):
        shared.resume_bookie(index)
    start_all(shared, dead)


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[StreamConnection]:
    with spark_ledger.connect(cluster.uri, **SHORT_TIMES) as made:
        yield made


@pytest.fixture
def other(cluster: LocalCluster) -> Iterator[StreamConnection]:
    """Another application."""
    with spark_ledger.connect(cluster.uri, **SHORT_TIMES) as made:
        yield made


def start_all(cluster: LocalCluster, indexes: list[int]) -> None:
    """Start bookies, in parallel."""
    if indexes:
        with ThreadPoolExecutor(len(indexes)) as pool:
            list(pool.map(cluster.start_bookie, indexes))


def payload(number: int) -> bytes:
    return b"entry %d " % number * (number % 7 + 1)


def append(writer: BlockingWriter, count: int) -> None:
    """Append with many entries in flight, and wait."""
    first = writer.last_add_pushed + 1
    futures = [writer.append_async(payload(first + i)) for i in range(count)]
    assert [future.result(WAIT_S) for future in futures] == list(range(first, first + count))
    assert writer.last_add_confirmed == first + count - 1


def cluster_index(cluster: LocalCluster, writer: BlockingWriter, bookie_index: int) -> int:
    """The index in the cluster of the bookie at a bookie index of the last fragment."""
    return cluster.bookie_ids.index(writer.metadata.last_fragment.bookies[bookie_index])


def check_payloads(reader: BlockingReader, first: int, last: int) -> None:
    entries = list(reader.read(first, last))
    assert [entry.entry_id for entry in entries] == list(range(first, last + 1))
    assert [entry.payload for entry in entries] == [payload(i) for i in range(first, last + 1)]


def check_closed_at(reader: BlockingReader, last: int) -> None:
    """The ledger is closed, ends at this entry, and can be read completely."""
    assert reader.is_closed and reader.metadata.state == "closed"
    assert reader.last_add_confirmed == reader.metadata.last_entry_id == last
    assert reader.metadata.length == sum(len(payload(i)) for i in range(last + 1))
    if last >= 0:
        check_payloads(reader, 0, last)
    with pytest.raises(ReadBeyondConfirmedError):
        reader.read(last + 1, last + 1)


def eventually(probe: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not probe():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}"
        time.sleep(0.02)


def without_explicit_lac(cluster: LocalCluster) -> StreamConnection:
    """A client whose writers send no explicit LAC while they are idle."""
    return spark_ledger.connect(cluster.uri, explicit_lac_delay_s=1000.0, **SHORT_TIMES)


# -- writing and ensemble changes ----------------------------------------------------------------


def test_the_ensemble_changes_twice(cluster: LocalCluster, client: StreamConnection) -> None:
    with client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2) as writer:
        assert [fragment.first_entry for fragment in writer.metadata.fragments] == [0]
        append(writer, 100)
        ensembles = [list(writer.metadata.last_fragment.bookies)]
        for bookie_index in (0, 2):
            cluster.kill_bookie(cluster_index(cluster, writer, bookie_index))
            append(writer, 100)
            append(writer, 1)
            ensembles.append(list(writer.metadata.last_fragment.bookies))
    fragments = client.ledger_metadata(writer.ledger_id).fragments
    assert [list(fragment.bookies) for fragment in fragments] == ensembles
    first, second, third = fragments
    assert first.first_entry == 0 and 100 <= second.first_entry <= 200
    assert 201 <= third.first_entry <= 301
    assert second.bookies[0] not in first.bookies and second.bookies[1:] == first.bookies[1:]
    assert third.bookies[2] not in second.bookies and third.bookies[:2] == second.bookies[:2]
    check_closed_at(client.open_ledger(writer.ledger_id), 301)


def test_paused_bookie_is_awaited_only_if_it_is_needed(
    cluster: LocalCluster, client: StreamConnection
) -> None:
    writer = client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=1)
    append(writer, 10)
    paused = cluster_index(cluster, writer, 0)
    cluster.pause_bookie(paused)
    append(writer, 200)  # AQ is 1: the other one is enough
    cluster.resume_bookie(paused)
    writer.close()
    check_closed_at(client.open_ledger(writer.ledger_id), 209)
    needed = client.create_ledger(ensemble_size=5, write_quorum=5, ack_quorum=5)
    append(needed, 10)
    cluster.pause_bookie(paused)
    future = needed.append_async(payload(10))
    with pytest.raises(TimeoutError):
        future.result(0.3)
    assert needed.last_add_confirmed == 9 and needed.last_add_pushed == 10
    cluster.resume_bookie(paused)
    assert future.result(WAIT_S) == 10
    needed.close()
    check_closed_at(client.open_ledger(needed.ledger_id), 10)


def test_too_few_bookies_end_the_ledger_at_what_was_confirmed(
    cluster: LocalCluster, client: StreamConnection
) -> None:
    writer = client.create_ledger(ensemble_size=5, write_quorum=5, ack_quorum=5)
    append(writer, 50)
    cluster.kill_bookie(cluster_index(cluster, writer, 3))
    futures = [writer.append_async(payload(50 + i)) for i in range(20)]
    for future in futures:
        error = future.exception(WAIT_S)
        assert isinstance(error, EnsembleLostError) and error.outcome_unknown
        assert f"ledger {writer.ledger_id}" in str(error)
    with pytest.raises(NotEnoughBookiesError):
        writer.append(b"more")
    writer.close()
    check_closed_at(client.open_ledger(writer.ledger_id), 49)
    known = client.list_ledgers()
    with pytest.raises(NotEnoughBookiesError, match="ensemble_size 6"):
        client.create_ledger(ensemble_size=6, write_quorum=3, ack_quorum=2)
    assert client.list_ledgers() == known


def test_close_while_a_bookie_fails(cluster: LocalCluster, client: StreamConnection) -> None:
    writer = client.create_ledger()
    append(writer, 20)
    victim = cluster_index(cluster, writer, 1)
    futures = [writer.append_async(payload(20 + i)) for i in range(500)]
    cluster.kill_bookie(victim)
    futures += [writer.append_async(payload(520 + i)) for i in range(100)]
    writer.close()
    assert [future.result(0) for future in futures] == list(range(20, 620)), "close has waited"
    with pytest.raises(LedgerClosedError):
        writer.append(b"after the end")
    writer.close()
    check_closed_at(client.open_ledger(writer.ledger_id), 619)


# -- fencing and recovery ------------------------------------------------------------------------


def test_zombie_writer_is_refused_after_a_recovery(
    client: StreamConnection, other: StreamConnection
) -> None:
    zombie = client.create_ledger()
    append(zombie, 30)
    check_closed_at(other.open_ledger(zombie.ledger_id, recover=True), 29)
    futures = [zombie.append_async(payload(30 + i)) for i in range(50)]
    for future in futures:
        error = future.exception(WAIT_S)
        assert isinstance(error, FencedError) and str(zombie.ledger_id) in str(error)
    with pytest.raises(FencedError):
        zombie.append(b"again")
    assert zombie.last_add_confirmed == 29
    zombie.close()
    for recover in (False, True):
        check_closed_at(client.open_ledger(zombie.ledger_id, recover=recover), 29)


def test_recoveries_at_once_agree_while_the_writer_is_at_work(
    cluster: LocalCluster, client: StreamConnection
) -> None:
    writer = client.create_ledger()
    append(writer, 100)
    futures: list[Future[int]] = []

    def recover(_number: int) -> BlockingReader:
        with spark_ledger.connect(cluster.uri, **SHORT_TIMES) as own:
            deadline = time.monotonic() + WAIT_S
            while True:  # the loser of a race may be told to retry
                try:
                    return own.open_ledger(writer.ledger_id, recover=True)
                except (RetryableError, FencedError):
                    assert time.monotonic() < deadline

    with ThreadPoolExecutor(5) as pool:
        opened = pool.map(recover, range(5))
        for number in range(100, 3000):
            try:
                futures.append(writer.append_async(payload(number)))
            except FencedError:
                break
        ends = {reader.last_add_confirmed for reader in opened}
    assert len(ends) == 1
    outcomes = [future.exception(WAIT_S) for future in futures]
    confirmed = 100 + sum(outcome is None for outcome in outcomes)
    assert all(outcome is None for outcome in outcomes[: confirmed - 100]), "in entry order"
    assert all(isinstance(o, FencedError | OutcomeUnknownError) for o in outcomes if o)
    assert max(ends) >= confirmed - 1 == writer.last_add_confirmed
    check_closed_at(client.open_ledger(writer.ledger_id), max(ends))


def test_recovery_with_a_dead_bookie_and_a_dead_writer(
    cluster: LocalCluster, client: StreamConnection
) -> None:
    with spark_ledger.connect(cluster.uri, **SHORT_TIMES) as gone:
        writer = gone.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        append(writer, 200)
        dead = writer.metadata.last_fragment.bookies[1]
        cluster.kill_bookie(cluster_index(cluster, writer, 1))
    assert client.ledger_metadata(writer.ledger_id).state == "open"
    reader = client.open_ledger(writer.ledger_id, recover=True)
    check_closed_at(reader, 199)
    last = reader.metadata.fragments[-1]
    if last.first_entry < 200 and last.first_entry > 0:
        assert dead not in last.bookies, "what was copied went to living bookies"


def test_recovery_without_coverage_fails_and_loses_nothing(
    cluster: LocalCluster, client: StreamConnection
) -> None:
    with spark_ledger.connect(cluster.uri, **SHORT_TIMES) as gone:
        writer = gone.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        append(writer, 50)
        dead = [cluster_index(cluster, writer, bookie_index) for bookie_index in (0, 1)]
    for index in dead:
        cluster.kill_bookie(index)
    with pytest.raises(RecoveryError) as caught:
        client.open_ledger(writer.ledger_id, recover=True)
    assert caught.value.retryable and "Start them" in str(caught.value)
    assert client.ledger_metadata(writer.ledger_id).state == "in_recovery"
    with pytest.raises(BookieUnavailableError):
        client.open_ledger(writer.ledger_id)
    cluster.start_bookie(dead[0])
    check_closed_at(client.open_ledger(writer.ledger_id, recover=True), 49)


def test_a_wrong_password_fences_nothing(
    cluster: LocalCluster, client: StreamConnection, other: StreamConnection
) -> None:
    writer = client.create_ledger(password=b"right")
    append(writer, 10)
    for password in (b"wrong", b""):
        for recover in (False, True):
            with pytest.raises(UnauthorizedError, match=str(writer.ledger_id)):
                other.open_ledger(writer.ledger_id, recover=recover, password=password)
    append(writer, 10)
    assert client.ledger_metadata(writer.ledger_id).state == "open"
    check_closed_at(other.open_ledger(writer.ledger_id, recover=True, password=b"right"), 19)
    with pytest.raises(FencedError):
        writer.append(b"late")
    open_to_all = client.create_ledger()
    with pytest.raises(UnauthorizedError):
        other.open_ledger(open_to_all.ledger_id, recover=True, password=b"none is expected")
    append(open_to_all, 1)


# -- reading -------------------------------------------------------------------------------------


def test_striped_reads_with_dead_bookies(cluster: LocalCluster, client: StreamConnection) -> None:
    with client.create_ledger(ensemble_size=4, write_quorum=2, ack_quorum=2) as writer:
        append(writer, 103)
    cluster.kill_bookie(cluster_index(cluster, writer, 1))
    reader = client.open_ledger(writer.ledger_id)
    check_closed_at(reader, 102)
    check_payloads(reader, 41, 60)
    cluster.kill_bookie(cluster_index(cluster, writer, 2))
    # Entries 1, 5, 9 ... are only on bookie indexes 1 and 2: they exist, but cannot be read now.
    with pytest.raises(BookieUnavailableError, match="entry 1:") as caught:
        list(reader.read(0, 102))
    assert not isinstance(caught.value, NotFoundError)
    check_payloads(reader, 2, 4)
    cluster.start_bookie(cluster_index(cluster, writer, 2))
    check_closed_at(client.open_ledger(writer.ledger_id), 102)


def test_reading_an_open_ledger_fences_nobody(
    cluster: LocalCluster, other: StreamConnection
) -> None:
    with without_explicit_lac(cluster) as client, client.create_ledger() as writer:
        for number in range(3):
            writer.append(payload(number))
        reader = other.open_ledger(writer.ledger_id)
        assert not reader.is_closed and reader.last_add_confirmed == 1
        check_payloads(reader, 0, 1)
        with pytest.raises(ReadBeyondConfirmedError, match="refresh"):
            reader.read(0, 2)
        writer.append(payload(3))
        assert reader.last_add_confirmed == 1, "nothing is learnt without asking"
        reader.refresh()
        assert reader.last_add_confirmed == 2
        check_payloads(reader, 0, 2)
        for first, last in ((2, 1), (-1, 0)):
            with pytest.raises(ConfigurationError):
                reader.read(first, last)
        append(writer, 1)
    assert reader.last_add_confirmed == 2
    reader.refresh()
    check_closed_at(reader, 4)


def test_an_idle_writer_makes_its_last_entry_visible(
    cluster: LocalCluster, client: StreamConnection, other: StreamConnection
) -> None:
    writer = client.create_ledger()
    reader = other.open_ledger(writer.ledger_id)
    assert reader.last_add_confirmed == -1

    def sees(last: int) -> bool:
        reader.refresh()
        return reader.last_add_confirmed == last

    for number in range(3):
        writer.append(payload(number))
        eventually(lambda last=number: sees(last), f"entry {number} is visible")  # type: ignore[misc]
    check_payloads(reader, 0, 2)
    entries = list(reader.tail(1, idle_timeout=0.3))
    assert [entry.entry_id for entry in entries] == [1, 2]
    append(writer, 1)


def test_tails_follow_over_ensemble_changes_to_the_end(
    cluster: LocalCluster, client: StreamConnection, other: StreamConnection
) -> None:
    writer = client.create_ledger()
    append(writer, 5)

    def follow(reader: BlockingReader, start: int) -> list[bytes]:
        return [entry.payload for entry in reader.tail(start, idle_timeout=WAIT_S)]

    # Opened in front of the kills: one whose ensemble dies meanwhile is told to open it again.
    readers = [other.open_ledger(writer.ledger_id) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        followers = [
            pool.submit(follow, reader, start)
            for reader, start in zip(readers, (0, 40), strict=True)
        ]
        append(writer, 30)
        for bookie_index in (0, 1):
            cluster.kill_bookie(cluster_index(cluster, writer, bookie_index))
            append(writer, 30)
        writer.close()
        for follower, start in zip(followers, (0, 40), strict=True):
            assert follower.result(WAIT_S) == [payload(i) for i in range(start, 95)]


def test_deleting_while_others_read_and_write(
    client: StreamConnection, other: StreamConnection
) -> None:
    with client.create_ledger() as writer:
        append(writer, 10)
    still_open = client.create_ledger()
    append(still_open, 10)
    reader, tail_of = (other.open_ledger(w.ledger_id) for w in (writer, still_open))
    tail = tail_of.tail(0, idle_timeout=WAIT_S)
    assert next(tail).payload == payload(0)
    for ledger_id in (writer.ledger_id, still_open.ledger_id):
        client.delete_ledger(ledger_id)
        client.delete_ledger(ledger_id)
        assert ledger_id not in client.list_ledgers()
        for recover in (False, True):
            with pytest.raises(NoSuchLedgerError, match=str(ledger_id)):
                other.open_ledger(ledger_id, recover=recover)
        with pytest.raises(NotFoundError):
            client.ledger_metadata(ledger_id)
    with pytest.raises(NoSuchLedgerError):
        reader.refresh()
    with pytest.raises(NoSuchLedgerError):
        list(tail)
    with pytest.raises(NoSuchLedgerError):
        still_open.close()


def test_empty_ledgers(client: StreamConnection, other: StreamConnection) -> None:
    with client.create_ledger() as closed:
        assert (closed.last_add_confirmed, closed.last_add_pushed, closed.length) == (-1, -1, 0)
    check_closed_at(client.open_ledger(closed.ledger_id), -1)
    assert list(client.open_ledger(closed.ledger_id).tail(0)) == []
    writer = client.create_ledger()
    reader = other.open_ledger(writer.ledger_id)
    assert not reader.is_closed and reader.last_add_confirmed == -1
    assert list(reader.tail(0, idle_timeout=0.1)) == []
    with pytest.raises(ReadBeyondConfirmedError):
        reader.read(0, 0)
    check_closed_at(other.open_ledger(writer.ledger_id, recover=True), -1)
    with pytest.raises(FencedError):
        writer.append(b"too late")
    with client.create_ledger() as nothing_in_it:
        assert nothing_in_it.append(b"") == 0
    reader = client.open_ledger(nothing_in_it.ledger_id)
    assert [entry.payload for entry in reader.read(0, 0)] == [b""]
    assert reader.metadata.length == 0


def test_listing(cluster: LocalCluster, client: StreamConnection, other: StreamConnection) -> None:
    made = [client.create_ledger(custom_metadata={"number": str(n)}) for n in range(3)]
    ids = [writer.ledger_id for writer in made]
    assert ids == sorted(set(ids))
    listed = other.list_ledgers()
    assert listed == sorted(listed) and set(ids) <= set(listed)
    for number, ledger_id in enumerate(ids):
        metadata = other.ledger_metadata(ledger_id)
        assert dict(metadata.custom_metadata) == {"number": str(number)}
        assert (metadata.state, metadata.last_entry_id) == ("open", -1)
    found = {info.id: info for info in other.list_bookies()}
    assert set(found) == set(cluster.bookie_ids)
    assert {info.state for info in found.values()} == {"writable"}
    addresses = {info.id: info.address for info in found.values()}
    assert addresses == {cluster.bookie_ids[i]: cluster.bookie_address(i) for i in range(BOOKIES)}
    with pytest.raises(NotFoundError):
        other.open_ledger(max(listed) + 1000)
    for wrong in ({"ensemble_size": 2}, {"ack_quorum": 0}, {"write_quorum": 1}):
        with pytest.raises(ConfigurationError, match="ensemble_size >= write_quorum"):
            client.create_ledger(**wrong)  # type: ignore[arg-type]
