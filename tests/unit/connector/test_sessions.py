"""Connections of a process: kept, forgotten with what they belong to, and never inherited."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from connector import sessions
from connector.option_parsers import Secret
from connector.options import ConnectionOptions, read_options
from spark_ledger.client.counters import ClientCounters
from spark_ledger.errors import LedgerClosedError, NoSuchStreamError
from spark_ledger.limits.connector import RAW_READERS_MAX, STREAM_HANDLES_MAX
from spark_ledger.stream.blocking import SegmentWriter, Stream, StreamConnection
from spark_ledger.types import LedgerId
from tests.unit.connector.world import Cluster, cluster, table, to_read

__all__ = ["cluster"]


def connection_options(**options: str) -> ConnectionOptions:
    return to_read(**options).connection


def segment_writer(
    options: ConnectionOptions,
    stream_id: str,
    compression: str | None = None,
    entry_bytes: int | None = None,
) -> Any:
    return sessions.segment_writer(
        options, "s", stream_id, compression=compression, entry_bytes=entry_bytes
    )


def test_connection_is_made_once_for_the_same_options(cluster: Cluster) -> None:
    one = sessions.connection(connection_options())
    assert sessions.connection(connection_options()) is one
    assert sessions.connection(connection_options(readTimeout="3s")) is not one
    assert [settings.get("read_timeout_s") for settings in cluster.settings] == [None, 3.0]


def test_every_option_of_a_connection_reaches_the_client(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Secrets as they are: the client cannot use one that hides itself."""
    monkeypatch.setattr(
        sessions, "fields", lambda _: [SimpleNamespace(name=n) for n in sessions._SETTINGS.values()]
    )
    sessions.connection(
        ConnectionOptions(
            metadata="zk://h/l",
            read_timeout_s=1.0,
            speculative_read_delay_s=2.0,
            auth_token=Secret("token"),
            ca_file="ca",
            cert_file="cert",
            key_file="key",
            key_password=Secret("word"),
        )
    )
    assert cluster.settings == [
        {
            "read_timeout_s": 1.0,
            "speculative_read_delay_s": 2.0,
            "auth_token": "token",
            "tls_ca_file": "ca",
            "tls_cert_file": "cert",
            "tls_key_file": "key",
            "tls_key_password": "word",
        }
    ]


def test_connection_of_the_parent_is_not_used_in_a_forked_child(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = connection_options()
    parents = sessions.connection(options)
    monkeypatch.setattr(sessions, "os", SimpleNamespace(getpid=lambda: -7))
    sessions.discard(options)
    assert sessions.connection(options) is not parents
    assert parents.list_streams() == [], "its sockets belong to the parent, and stay open"
    child = sessions.connection(options)
    assert sessions.connection(options) is child


def test_forked_child_keeps_what_its_parent_has_and_counts_from_zero(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept, because a destructor would write to sockets that are the parent's."""
    options = connection_options()
    parents = weakref.ref(sessions.connection(options))
    cluster.connections.clear()
    monkeypatch.setattr(
        StreamConnection, "counters", property(lambda _: ClientCounters(read_requests=9))
    )
    assert sessions.counters(options).read_requests == 9
    assert sessions.is_connected(options)
    monkeypatch.setattr(sessions, "os", SimpleNamespace(getpid=lambda: -7))
    assert sessions.counters(options) == ClientCounters(), "of a task that has done nothing yet"
    assert not sessions.is_connected(options)
    sessions.connection(options)
    gc.collect()
    kept = parents()
    assert kept is not None
    kept.close()


def test_connection_that_was_discarded_is_closed_and_made_again(cluster: Cluster) -> None:
    options = connection_options()
    first = sessions.connection(options)
    sessions.discard(options)
    sessions.discard(options)
    with pytest.raises(LedgerClosedError):
        first.list_streams()
    assert sessions.connection(options).list_streams() == []


def test_stream_made_again_is_opened_again_by_its_id(cluster: Cluster) -> None:
    options = connection_options()
    before = cluster.create(1).config.stream_id
    assert sessions.stream(options, "s", before).config.stream_id == before
    after = cluster.create(2).config.stream_id
    assert sessions.stream(options, "s", after).head().rows == 1
    with pytest.raises(NoSuchStreamError, match="deleted and created again"):
        sessions.stream(options, "s", before)
    assert sessions.fresh_stream(options, "s").config.stream_id == after


def test_writer_is_of_the_stream_that_the_task_was_told_and_of_no_later_one(
    cluster: Cluster,
) -> None:
    """Its rows fit the schemas of the former one only, and its commit would name it (rule T7)."""
    options = connection_options()
    before = cluster.create(1).config.stream_id
    after = cluster.create(2).config.stream_id
    for _ in range(2):
        with pytest.raises(NoSuchStreamError, match="deleted and created again"):
            segment_writer(options, before)
        kept = segment_writer(options, after)
    assert kept is segment_writer(options, after)


def test_writer_of_a_deleted_stream_is_closed_and_not_used_for_the_new_one(
    cluster: Cluster,
) -> None:
    options = connection_options()
    before = cluster.create().config.stream_id
    old = segment_writer(options, before)
    other = sessions.segment_writer(
        options, "t", cluster.create(name="t").config.stream_id, compression=None, entry_bytes=None
    )
    old.write(table(1))
    (segment,) = old.finish()
    after = cluster.create().config.stream_id
    new = segment_writer(options, after)
    assert new is not old
    new.write(table(2))
    (again,) = new.finish()
    assert again.ledger_id != segment.ledger_id
    kept = sessions.segment_writer(
        options, "t", other._writer._schemas.config.stream_id, compression=None, entry_bytes=None
    )
    assert kept is other, "a writer of another stream stays"


def test_writers_are_kept_by_their_options(cluster: Cluster) -> None:
    options, stream_id = connection_options(), cluster.create().config.stream_id
    writers = [
        segment_writer(options, stream_id, *how)
        for how in [(None, None), ("zstd", None), ("none", None), (None, 2048)]
    ]
    assert len(set(map(id, writers))) == 4
    assert segment_writer(options, stream_id, "zstd") is writers[1]


def test_raw_readers_kept_are_those_used_last(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEDGER_PASSWORD", "hunter2")
    options = read_options(
        {"metadata": "zk://h/l", "ledgerId": "0", "ledger.password": "env:LEDGER_PASSWORD"},
        streaming=True,
    ).connection
    opened: list[int] = []

    def open_ledger(ledger_id: int, *, password: bytes) -> object:
        assert password == b"hunter2"
        opened.append(ledger_id)
        return SimpleNamespace()

    monkeypatch.setattr(sessions.connection(options), "open_ledger", open_ledger)
    hot = sessions.ledger_reader(options, LedgerId(0))
    for number in range(1, 2 * RAW_READERS_MAX):
        sessions.ledger_reader(options, LedgerId(number))
        assert sessions.ledger_reader(options, LedgerId(0)) is hot
    assert len(opened) == len(set(opened))
    sessions.ledger_reader(options, LedgerId(1))
    assert opened[-1] == 1, "it was not used for long"


def test_writers_of_as_many_streams_as_a_commit_takes_keep_their_ledgers(cluster: Cluster) -> None:
    options = connection_options()
    names = [f"s{number}" for number in range(2 * STREAM_HANDLES_MAX)]
    ids = {name: cluster.create(name=name).config.stream_id for name in names}

    def use(name: str) -> Any:
        return sessions.segment_writer(options, name, ids[name], compression=None, entry_bytes=None)

    writers = [use(name) for name in names]
    assert [use(name) for name in names] == writers


def test_streams_with_writers_are_kept_up_to_their_bound(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that goes too early begins a new ledger in each micro-batch."""
    monkeypatch.setattr(sessions, "STREAM_WRITERS_MAX", 4)
    monkeypatch.setattr(sessions, "STREAM_HANDLES_MAX", 2)
    options, kept = connection_options(), []
    names = [f"s{number}" for number in range(7)]
    for name in names:
        stream_id = cluster.create(name=name).config.stream_id
        sessions.segment_writer(options, name, stream_id, compression=None, entry_bytes=None)
        kept.append(list(sessions._session(options).streams))
    # A handle has no writer yet when it is opened; so one more has one.
    assert kept == [names[max(0, at - 4) : at + 1] for at in range(7)]


def test_stream_handles_kept_are_those_used_last_and_one_in_use_goes_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "STREAM_WRITERS_MAX", 0)
    options = connection_options()
    names = [f"s{number}" for number in range(STREAM_HANDLES_MAX + 3)]
    ids = {name: cluster.create(1, 2, name=name).config.stream_id for name in names}

    def use(name: str) -> Any:
        return sessions.stream(options, name, ids[name])

    first, hot = use(names[0]), use(names[1])
    writer = sessions.segment_writer(
        options, names[0], ids[names[0]], compression=None, entry_bytes=None
    )
    writer.write(table(7))
    for name in names[2:]:
        use(name)
        assert use(names[1]) is hot
    session = sessions._session(options)
    assert len(session.streams) == STREAM_HANDLES_MAX and names[0] not in session.streams
    assert names[0] not in {key[0] for key in session.writers}
    (segment,) = writer.finish()
    first.commit_segments([segment], sink_id="q", transaction_id=1)
    assert use(names[0]) is not first
    assert use(names[0]).head().rows == first.head().rows == 3


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The handles that were closed: the name of a stream, and of its writers with a star."""
    found: list[str] = []
    of_stream, of_writer = Stream.close, SegmentWriter.close

    def close_stream(self: Stream) -> None:
        found.append(self.name)
        of_stream(self)

    def close_writer(self: SegmentWriter) -> None:
        found.append(f"{self._writer._schemas.config.name}*")
        of_writer(self)

    monkeypatch.setattr(Stream, "close", close_stream)
    monkeypatch.setattr(SegmentWriter, "close", close_writer)
    return found


def test_handles_of_a_deleted_stream_are_closed_with_all_of_its_writers(
    cluster: Cluster, closed: list[str]
) -> None:
    """Else a process of months keeps a watch and open ledgers of each stream that ever was."""
    options, stream_id = connection_options(), cluster.create().config.stream_id
    cluster.create(name="t")
    sessions.fresh_stream(options, "t")
    for compression in (None, "zstd"):
        segment_writer(options, stream_id, compression)
    cluster.outside.delete_stream("s")
    closed.clear()
    with pytest.raises(NoSuchStreamError):
        sessions.fresh_stream(options, "s")
    assert sorted(closed) == ["s", "s*", "s*"]


def test_handle_that_is_kept_no_more_is_closed_and_those_with_writers_count_apart(
    cluster: Cluster, closed: list[str]
) -> None:
    options = connection_options()
    written = cluster.create(name="written").config.stream_id
    sessions.segment_writer(options, "written", written, compression=None, entry_bytes=None)
    names = [f"s{number}" for number in range(STREAM_HANDLES_MAX + 1)]
    for name in names:
        cluster.create(name=name)
    closed.clear()
    for name in names:
        sessions.fresh_stream(options, name)
    assert closed == names[:1]
