"""Options: every name, type, range and conflict has one clear answer."""

from __future__ import annotations

import pickle
import random
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from connector.foreign_options import INSTEAD
from connector.option_parsers import PositionJson, Secret, parse_timestamp_ms
from connector.option_table import OPTIONS
from connector.options import (
    METADATA_ENVIRONMENT,
    ReadOptions,
    TriggerLimits,
    WriteOptions,
    read_options,
    write_options,
)
from spark_ledger.errors import ConfigurationError
from spark_ledger.limits.entries import ENSEMBLE_SIZE_MAX, ENTRY_PAYLOAD_BYTES_MAX
from spark_ledger.stream.model import ENTRY_BYTES_MIN, Retention
from spark_ledger.stream.plan.partitions import PlanLimits
from spark_ledger.types import Dlsn, Quorums

URI = "zk://127.0.0.1:2181/ledgers"
BASE = {"metadata": URI, "stream": "flights"}

TRANSACTION = '{"sink": "q", "transaction": 7}'


def read(streaming: bool = True, /, **options: str) -> ReadOptions:
    return read_options({**BASE, **options}, streaming=streaming)


def write(streaming: bool = True, /, **options: str) -> WriteOptions:
    return write_options({**BASE, **options}, streaming=streaming)


def test_defaults_of_a_read() -> None:
    options = read()
    assert options.connection.metadata == URI
    assert (options.stream, options.ledger_id) == ("flights", None)
    assert (options.start, options.end) == ("earliest", "latest")
    assert options.trigger == TriggerLimits() and options.trigger.unlimited
    assert options.plan == PlanLimits(1, None)
    assert options.fail_on_data_loss and not options.include_metadata


def test_values_by_stream_may_name_the_only_one_as_kafka_names_its_topic() -> None:
    found = read(startingPosition='{"flights": {"offset": 3}}')
    assert found.start == PositionJson(offset=3) and found.several is None
    found = read(False, endingPosition='{"flights": {"segment": 2}}')
    assert found.end == PositionJson(segment=2) and found.start == "earliest"
    found = read(startingTimestamp='{"flights": 1700000000000}')
    assert found.start_timestamp_ms == 1_700_000_000_000
    with pytest.raises(ConfigurationError, match="'a' is none of the streams 'flights'"):
        read(startingTimestamp='{"a": 1}')
    with pytest.raises(ConfigurationError, match="a raw ledger has no streams"):
        read_options(
            {"metadata": URI, "ledgerId": "3", "startingPosition": '{"a": "latest"}'},
            streaming=True,
        )


def test_missing_stream_says_that_tables_lose_their_options() -> None:
    """As of CREATE TABLE ... OPTIONS (stream '...') AS SELECT, where it was given."""
    with pytest.raises(ConfigurationError, match=r"stream is missing.*CREATE TEMPORARY VIEW"):
        write_options({"metadata": URI}, streaming=False)


def test_defaults_of_a_write() -> None:
    options = write()
    assert options.create_stream and not options.merge_schema
    assert options.quorums == Quorums(3, 3, 2)
    assert options.sink_id is options.transaction_app is options.compression is None


def test_option_names_are_case_insensitive() -> None:
    options = read_options(
        {"METADATA": URI, "Stream": "s", "MAXROWSPERTRIGGER": "7"}, streaming=True
    )
    assert options.trigger.max_rows == 7


def test_every_option_has_a_unique_name() -> None:
    assert len({option.name.lower() for option in OPTIONS}) == len(OPTIONS)


def test_metadata_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(METADATA_ENVIRONMENT, URI)
    assert read_options({"stream": "s"}, streaming=True).connection.metadata == URI
    monkeypatch.delenv(METADATA_ENVIRONMENT)
    with pytest.raises(
        ConfigurationError, match=f"option metadata is missing.*{METADATA_ENVIRONMENT}"
    ):
        read_options({"stream": "s"}, streaming=True)


def test_path_names_the_stream() -> None:
    assert read_options({"metadata": URI, "path": "s"}, streaming=True).stream == "s"
    assert write_options({"metadata": URI, "path": "s"}, streaming=True).stream == "s"
    assert read_options({**BASE, "path": "flights"}, streaming=True).stream == "flights"
    with pytest.raises(ConfigurationError, match="stream = 'flights' and the path 'x'"):
        read(path="x")


def test_options_that_spark_adds_are_allowed() -> None:
    write(checkpointLocation="/tmp/c", queryName="q")


@pytest.mark.parametrize(
    ("given", "suggested"),
    [
        ("strem", "stream"),
        ("maxRowPerTrigger", "maxRowsPerTrigger"),
        ("startPosition", "startingPosition"),
        ("includeMetadate", "includeMetadata"),
        ("ledger.pasword", "ledger.password"),
        ("writequorums", "writeQuorum"),
    ],
)
def test_misspelt_option_suggests_the_nearest(given: str, suggested: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"unknown option '{given}': did you mean {suggested}"
    ):
        read(**{given: "1"})


def test_unknown_option_lists_the_valid_ones() -> None:
    with pytest.raises(ConfigurationError, match="unknown option 'qqq'; the options are ackQuorum"):
        read(qqq="1")


@pytest.mark.parametrize(("name", "says"), INSTEAD.items())
def test_options_of_other_connectors_name_ours(name: str, says: str) -> None:
    for given in (name, name.upper()):
        with pytest.raises(ConfigurationError, match="is not supported: ") as caught:
            read(**{given: "x"})
        assert says in str(caught.value)


@pytest.mark.parametrize("name", ["kafka.acks", "pulsar.client.authParams"])
def test_settings_of_other_clients_are_refused_in_a_sentence(name: str) -> None:
    for ask in (read, write):
        with pytest.raises(ConfigurationError, match="mean nothing here; remove it"):
            ask(**{name: "x"})


def test_asynchronous_progress_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="exactly-once"):
        write(asyncProgressTrackingEnabled="true")


def test_options_of_a_table_are_refused_before_unknown_names() -> None:
    with pytest.raises(ConfigurationError, match=r"not supported: .*use CREATE TEMPORARY VIEW"):
        read(**{"option.stream": "s", "provider": "ledger"})


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("maxRowsPerTrigger", "0", "needs a whole number >= 1"),
        ("maxRowsPerTrigger", "many", "needs a whole number >= 1"),
        ("maxRowsPerTrigger", "1.5", "needs a whole number >= 1"),
        ("maxBytesPerTrigger", "10 parsecs", "needs a size such as"),
        ("maxBytesPerPartition", "1k", "at least 65536 bytes"),
        ("minPartitions", "100000", "1 to 10000"),
        ("failOnDataLoss", "yes", "needs true or false"),
        ("readTimeout", "0", "above 0"),
        ("readTimeout", "-5s", "above 0"),
        ("startingPosition", "newest", "needs earliest, latest or JSON"),
        ("startingPosition", '{"segment": "3"}', "needs earliest, latest or JSON"),
        ("startingPosition", '{"segment": 3, "offset": 1}', "an offset stands alone"),
        ("startingPosition", '{"segment": 3, "offset": 0}', "an offset stands alone"),
        ("startingPosition", '{"offset": -1}', "count from 0"),
        ("startingPosition", '{"segment": 3, "row": 1}', "unknown field"),
        ("startingPosition", '{"segment": -3}', "count from 0"),
        ("startingPosition", '{"entry": 3}', 'names its "segment"'),
        ("startingTimestamp", "yesterday", "ISO 8601"),
        ("startingTimestamp", '{"a": {"0": 5}}', "of a write the time itself"),
        ("startingPosition", '{"a": {"0": 23, "1": -1}}', 'of a write {"offset": 23} for 23'),
        ("startingTransaction", "7", "such as"),
        ("startingTransaction", '{"sink": "q"}', "such as"),
        ("startingTransaction", '{"sink": "q", "transaction": "7"}', "such as"),
        ("ledgerId", "-1", "needs a whole number >= 0"),
        ("metadata", "host:2181", "not a URI"),
        ("stream", " ", "is empty"),
    ],
)
def test_bad_value_names_the_option_and_what_is_allowed(name: str, text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=name) as caught:
        read(**{name: text})
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1048576", 1 << 20),
        ("64k", 64 << 10),
        ("128m", 128 << 20),
        ("1 MiB", 1 << 20),
        ("1g", 1 << 30),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert read(maxBytesPerTrigger=text).trigger.max_bytes == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10", 10.0), ("500ms", 0.5), ("10s", 10.0), ("15m", 900.0), ("1h", 3600.0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert read(readTimeout=text).connection.read_timeout_s == pytest.approx(seconds)


def test_positions() -> None:
    position = read(startingPosition='{"slot": 2, "segment": 3}').start
    assert isinstance(position, PositionJson) and position.dlsn == Dlsn(3, 0, 2)
    assert read(startingPosition="LATEST").start == "latest"


@pytest.mark.parametrize("zone", ["UTC", "America/St_Johns", "Pacific/Kiritimati"])
@pytest.mark.parametrize(
    "text",
    [
        "1767225600000",
        "2026-01-01T00:00:00Z",
        "2026-01-01",
        "2026-01-01T00:00:00",
        "2026-01-01 00:00:00.000",
        "2026-01-01T01:00:00+01:00",
        "2025-12-31T20:30:00-03:30",
    ],
)
def test_timestamps(monkeypatch: pytest.MonkeyPatch, text: str, zone: str) -> None:
    """Wherever the driver stands: a time without a zone is UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        found = read(startingTimestamp=text).start_timestamp_ms
        ending = read(False, endingTimestamp=text).end_timestamp_ms
    time.tzset()
    assert found == ending == 1767225600000


@pytest.mark.parametrize(
    ("text", "zone", "utc"),
    [
        ("2026-07-01T12:00", "Asia/Kathmandu", "2026-07-01T06:15:00Z"),
        ("2026-07-01 12:00:00.5", "+05:45", "2026-07-01T06:15:00.5Z"),
        ("2026-07-01", " Europe/Berlin ", "2026-06-30T22:00:00Z"),
        ("2026-12-01", "Europe/Berlin", "2026-11-30T23:00:00Z"),
        ("2026-10-25T02:30", "Europe/Berlin", "2026-10-25T00:30:00Z"),
        ("2026-07-01T12:00-03:00", "Europe/Berlin", "2026-07-01T15:00:00Z"),
        ("2026-07-01T12:00Z", "-08:00", "2026-07-01T12:00:00Z"),
        ("20260701", "+05:45", "1970-01-01T05:37:40.701Z"),
    ],
)
def test_time_without_a_zone_is_in_the_zone_that_is_given(text: str, zone: str, utc: str) -> None:
    expected = parse_timestamp_ms(utc)
    assert read(startingTimestamp=text, timeZone=zone).start_timestamp_ms == expected
    assert read(timezone=zone, startingTimestamp=text).start_timestamp_ms == expected
    assert read(False, endingTimestamp=text, timeZone=zone).end_timestamp_ms == expected
    times = f'{{"a": "{text}", "b": 5}}'
    raw = {"streams": "a,b", "startingTimestamp": times, "timeZone": zone}
    several = read_options({"metadata": URI, **raw}, streaming=True).several
    assert several is not None and several.start_times_ms == {"a": expected, "b": 5}


def test_zone_changes_no_event_time() -> None:
    """One of a column without a zone has none either."""
    times = {"startingEventTime": "2026-07-01", "endingEventTime": "2026-07-02"}
    assert read(**times, timeZone="+05:45").where == read(**times).where


@pytest.mark.parametrize("zone", ["", "Europe", "Berlin", "+2", "../../etc/passwd", "/etc/group"])
def test_zone_that_there_is_not_is_refused(zone: str) -> None:
    with pytest.raises(ConfigurationError, match=r"option timeZone = .* such as Europe/Berlin"):
        read(startingTimestamp="2026-07-01", timeZone=zone)
    with pytest.raises(ConfigurationError, match=r"option startingTimestamp = 'soon'.*ISO 8601"):
        read(startingTimestamp="soon", timeZone="UTC")


def test_every_millisecond_of_a_timestamp_is_kept() -> None:
    """As a binary fraction, one time in two hundred is a little less than it says."""
    rng = random.Random(1)
    for _ in range(3000):
        ms = rng.randrange(4_000_000_000_000)
        text = datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        assert parse_timestamp_ms(f"{text}.{ms % 1000:03d}Z") == ms


@pytest.mark.parametrize(
    ("name", "lowest", "highest"),
    [
        ("ensembleSize", 1, ENSEMBLE_SIZE_MAX),
        ("entryBytes", ENTRY_BYTES_MIN, ENTRY_PAYLOAD_BYTES_MAX // 2),
    ],
)
def test_bounds_of_a_number_belong_to_it(name: str, lowest: int, highest: int) -> None:
    others = {"writeQuorum": "1", "ackQuorum": "1"} if name == "ensembleSize" else {}
    for value in (lowest, highest):
        write(**{name: str(value)}, **others)
    for value in (lowest - 1, highest + 1):
        with pytest.raises(ConfigurationError, match=name):
            write(**{name: str(value)}, **others)


def test_metadata_of_the_option_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LEDGER_METADATA", "zk://environment/ledgers")
    assert read().connection.metadata == URI
    given = {"stream": "s"}
    assert read_options(given, streaming=True).connection.metadata == "zk://environment/ledgers"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("3", 3.0), ("3 s", 3.0), ("2m", 120.0), ("2min", 120.0), ("1.5h", 5400.0)],
)
def test_durations_are_seconds(text: str, seconds: float) -> None:
    assert read(readTimeout=text).connection.read_timeout_s == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("streaming", "one", "other"),
    [
        (True, ("startingPosition", "earliest"), ("startingTimestamp", "1")),
        (True, ("startingPosition", "latest"), ("startingTransaction", TRANSACTION)),
        (True, ("startingTimestamp", "1"), ("startingTransaction", TRANSACTION)),
        (False, ("endingPosition", "latest"), ("endingTimestamp", "1")),
        (True, ("stream", "flights"), ("ledgerId", "1")),
    ],
)
def test_conflicting_options_are_both_named(
    streaming: bool, one: tuple[str, str], other: tuple[str, str]
) -> None:
    with pytest.raises(ConfigurationError, match=f"{one[0]} and {other[0]} exclude each other"):
        read(streaming, **dict([one, other]))


def test_options_in_the_wrong_mode_say_what_to_use() -> None:
    with pytest.raises(ConfigurationError, match="endingPosition is for batch queries only"):
        read(True, endingPosition="latest")
    with pytest.raises(ConfigurationError, match="maxRowsPerTrigger is for streaming queries only"):
        read(False, maxRowsPerTrigger="5")
    with pytest.raises(ConfigurationError, match=r"txnAppId is for batch.*sinkId"):
        write(True, txnAppId="a", txnVersion="1")
    with pytest.raises(ConfigurationError, match=r"sinkId is for streaming.*txnAppId"):
        write(False, sinkId="a")


def test_options_of_the_other_direction() -> None:
    with pytest.raises(ConfigurationError, match="sinkId is for a write, not for a streaming read"):
        read(True, sinkId="a")
    with pytest.raises(ConfigurationError, match="includeMetadata is for a read"):
        write(True, includeMetadata="true")
    read(False, ensembleSize="1")
    write(False, includeMetadata="true")


def test_transaction_options_come_in_pairs() -> None:
    options = write(False, txnAppId="job", txnVersion="7")
    assert (options.transaction_app, options.transaction_version) == ("job", 7)
    with pytest.raises(ConfigurationError, match="txnVersion needs option txnAppId"):
        write(False, txnVersion="7")
    with pytest.raises(ConfigurationError, match="txnAppId needs option txnVersion"):
        write(False, txnAppId="job")


def test_trigger_limits() -> None:
    limits = read(minRowsPerTrigger="5", maxRowsPerTrigger="9", maxTriggerDelay="30s").trigger
    assert limits == TriggerLimits(9, None, 5, 30.0)
    with pytest.raises(ConfigurationError, match="maxTriggerDelay needs option minRowsPerTrigger"):
        read(maxTriggerDelay="30s")
    with pytest.raises(
        ConfigurationError, match="minRowsPerTrigger = 9 is above maxRowsPerTrigger"
    ):
        read(minRowsPerTrigger="9", maxRowsPerTrigger="5")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (3, 3, 2)),
        ({"ensembleSize": "1"}, (1, 1, 1)),
        ({"ensembleSize": "2"}, (2, 2, 2)),
        ({"ensembleSize": "5"}, (5, 3, 2)),
        ({"writeQuorum": "4"}, (4, 4, 2)),
        ({"writeQuorum": "2"}, (3, 2, 2)),
        ({"ackQuorum": "1"}, (3, 3, 1)),
        ({"ensembleSize": "5", "writeQuorum": "3", "ackQuorum": "3"}, (5, 3, 3)),
    ],
)
def test_quorums(given: dict[str, str], expected: tuple[int, int, int]) -> None:
    assert write(**given).quorums == Quorums(*expected)


def test_impossible_quorums_are_named_as_options() -> None:
    with pytest.raises(ConfigurationError, match="ensembleSize = 2, writeQuorum = 3"):
        write(ensembleSize="2", writeQuorum="3")
    with pytest.raises(ConfigurationError, match="ackQuorum counts only when"):
        write(ackQuorum="1", createStream="false")


def test_options_of_raw_ledgers() -> None:
    options = read_options(
        {"metadata": URI, "ledgerId": "42", "startingPosition": '{"entry": 5}'}, streaming=True
    )
    assert (options.ledger_id, options.stream, options.subject) == (42, None, "ledger 42")
    for name, text in {
        "startingTimestamp": "5",
        "startingTransaction": TRANSACTION,
        "includeMetadata": "true",
        "startingPosition": '{"segment": 0, "entry": 1}',
        "path": "s",
        "maxBytesPerTrigger": "5",
    }.items():
        with pytest.raises(ConfigurationError):
            read_options({"metadata": URI, "ledgerId": "42", name: text}, streaming=True)
    for streaming in (True, False):
        with pytest.raises(ConfigurationError, match="ledgerId is for reading"):
            write_options({"metadata": URI, "ledgerId": "42"}, streaming=streaming)


def test_secrets_are_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGER_SECRET", "from-env")
    file = tmp_path / "secret"
    file.write_text("from-file\n")
    for reference, value in {
        "plain": "plain",
        "env:LEDGER_SECRET": "from-env",
        f"file:{file}": "from-file",
    }.items():
        options = read_options(
            {"metadata": URI, "ledgerId": "1", "ledger.password": reference}, streaming=True
        )
        assert reference not in repr(options)
        assert options.connection.password.reveal() == value
        assert pickle.loads(pickle.dumps(options)) == options
    with pytest.raises(ConfigurationError, match="LEDGER_OTHER, which is not set"):
        Secret("env:LEDGER_OTHER").reveal()
    with pytest.raises(ConfigurationError, match="/no/such/file, which cannot be read"):
        Secret("file:/no/such/file").reveal()


@pytest.mark.parametrize("content", [b"", b"\n", b" \r\n"])
def test_secret_that_is_empty_is_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    """What was to be protected would not be, and nobody would be told."""
    file = tmp_path / "secret"
    file.write_bytes(content)
    monkeypatch.setenv("LEDGER_SECRET", "")
    for reference in ("env:LEDGER_SECRET", f"file:{file}"):
        with pytest.raises(ConfigurationError, match=f"{reference}, which is empty"):
            Secret(reference).reveal()
    assert Secret("").reveal() == "", "none was given"


def test_secret_in_a_file_that_is_no_text_is_refused_with_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match="cannot be read: it is not UTF-8"):
        Secret(f"file:{file}").reveal()


def test_password_for_a_stream_is_refused() -> None:
    for ask in (read, write):
        with pytest.raises(ConfigurationError, match=r"ledger\.password is for raw ledgers"):
            ask(**{"ledger.password": "x"})


def test_tls_files_come_in_pairs() -> None:
    with pytest.raises(ConfigurationError, match=r"tls\.certFile needs option tls\.keyFile"):
        read(**{"tls.certFile": "/c.pem"})


def test_retention_of_a_new_stream() -> None:
    assert write().retention is None
    found = write(retentionAge="7d", retentionBytes="2g", retentionRows="5").retention
    assert found == Retention(7 * 86_400.0, 2 << 30, 5)
    for options in (
        {"retentionAge": "soon"},
        {"retentionAge": "7"},
        {"retentionAge": "1ms"},
        {"retentionRows": "0"},
    ):
        with pytest.raises(ConfigurationError, match="option retention"):
            write(**options)
    with pytest.raises(ConfigurationError, match="counts only when the stream is created"):
        write(retentionBytes="1g", createStream="false")
