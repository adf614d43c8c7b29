"""Options whose values are easily taken for one another: by stream or not, start or end, both ends
at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from connector.option_parsers import PositionJson, PositionsByStream, Secret, parse_positions
from connector.options import ReadOptions, read_options, write_options
from spark_ledger.errors import ConfigurationError

BASE = {"metadata": "zk://127.0.0.1:2181/ledgers"}


def read(streaming: bool = True, /, **options: str) -> ReadOptions:
    return read_options({**BASE, **options}, streaming=streaming)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"streams": {"segment": 3}}', {"streams": PositionJson(segment=3)}),
        ('{"streams": {"offset": 3}}', {"streams": PositionJson(offset=3)}),
        ('{"streams": "latest"}', {"streams": "latest"}),
        ('{"streams": {"a": {"segment": 3}}}', {"a": PositionJson(segment=3)}),
        ('{"streams": {"a": "latest", "b": "earliest"}}', {"a": "latest", "b": "earliest"}),
    ],
)
def test_stream_that_is_called_streams_has_its_position(
    text: str, found: dict[str, object]
) -> None:
    """The positions of several stand under this word in a query's progress."""
    assert parse_positions(text) == PositionsByStream(found)  # type: ignore[arg-type]


def test_each_end_of_each_stream_is_its_own() -> None:
    given = {
        "startingPosition": '{"a": {"segment": 1}}',
        "endingPosition": '{"a": {"segment": 4}, "b": {"segment": 5}}',
    }
    found = {name: read(False, streams="a,b,c", **given).of_stream(name) for name in "abc"}
    assert [(each.start, each.end) for each in found.values()] == [
        (PositionJson(segment=1), PositionJson(segment=4)),
        ("earliest", PositionJson(segment=5)),
        ("earliest", "latest"),
    ]
    given = {"startingTimestamp": '{"a": 1000}', "endingTimestamp": '{"a": 4000, "b": 5000}'}
    found = {name: read(False, streams="a,b,c", **given).of_stream(name) for name in "abc"}
    assert [(each.start_timestamp_ms, each.end_timestamp_ms) for each in found.values()] == [
        (1000, 4000),
        (None, 5000),
        (None, None),
    ]
    given = {"startingTimestamp": "1000", "endingTimestamp": '{"a": 4000}'}
    found = {name: read(False, streams="a,b", **given).of_stream(name) for name in "ab"}
    assert [(each.start_timestamp_ms, each.end_timestamp_ms) for each in found.values()] == [
        (1000, 4000),
        (1000, None),
    ]


def test_event_times_may_be_the_same_and_then_no_row_is_between_them() -> None:
    where = read(stream="s", startingEventTime="1000", endingEventTime="1000").where
    assert (where.start_us, where.end_us) == (1_000_000, 1_000_000)


@pytest.mark.parametrize(
    "position",
    [
        '{"entry": 1, "slot": 1}',
        '{"offset": 1}',
        '{"offset": 0}',
        '{"segment": 0}',
        '{"entry": 1, "stream": "id"}',
    ],
)
def test_position_of_a_stream_is_none_in_a_raw_ledger(position: str) -> None:
    with pytest.raises(ConfigurationError, match='has an "entry" only'):
        read(ledgerId="1", startingPosition=position)


def test_raw_ledger_may_be_read_without_metadata_said_so() -> None:
    found = read(ledgerId="1", includeMetadata="false", includeHeaders="false")
    assert (found.ledger_id, found.include_metadata, found.kafka_columns) == (1, False, False)


def test_least_rows_may_be_the_most_rows() -> None:
    trigger = read(stream="s", minRowsPerTrigger="5", maxRowsPerTrigger="5").trigger
    assert (trigger.min_rows, trigger.max_rows, trigger.unlimited) == (5, 5, False)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (one, other)
        for one in ("streams", "streamPattern")
        for other in ("ledgerId", "stream", "path")
    ],
)
def test_read_of_several_streams_names_no_other(one: str, other: str) -> None:
    """Whatever is left out of account would be read by nobody, without a word."""
    given = {one: "a,b" if one == "streams" else ".*", other: "1"}
    with pytest.raises(ConfigurationError, match=f"options {one} and {other} exclude each other"):
        read(**given)


@pytest.mark.parametrize("name", ["stream", "path"])
def test_write_whose_rows_name_their_streams_names_no_other(name: str) -> None:
    given = {**BASE, "routeColumn": "topic", name: "s"}
    with pytest.raises(ConfigurationError, match=f"options routeColumn and {name} exclude"):
        write_options(given, streaming=False)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("startingEventTime", "1000"),
        ("endingEventTime", "1000"),
        ("keyEquals", "1"),
        ("startingTransaction", '{"sink": "q", "transaction": 7}'),
        ("startingTimestamp", "1000"),
        ("endingTimestamp", "1000"),
        ("includeMetadata", "true"),
        ("includeMetadata", "kafka"),
    ],
)
def test_option_that_means_nothing_in_a_raw_ledger_is_refused(option: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"option {option} is for streams"):
        read(False, **{"ledgerId": "1", option: text})


CONNECTION = {
    "readTimeout": ("3s", "read_timeout_s", 3.0),
    "speculativeReadDelay": ("250ms", "speculative_read_delay_s", 0.25),
    "ledger.password": ("one", "password", Secret("one")),
    "ledger.auth.token": ("two", "auth_token", Secret("two")),
    "tls.caFile": ("/ca", "ca_file", "/ca"),
    "tls.certFile": ("/cert", "cert_file", "/cert"),
    "tls.keyFile": ("/key", "key_file", "/key"),
    "tls.keyPassword": ("three", "key_password", Secret("three")),
}
WRITE: dict[str, tuple[str, str, object]] = {
    "mergeSchema": ("true", "merge_schema", True),
    "compression": ("zstd", "compression", "zstd"),
    "entryBytes": ("2048", "entry_bytes", 2048),
    "sinkId": ("q", "sink_id", "q"),
    "failOnDataLoss": ("false", "fail_on_data_loss", False),
    "taskLog": ("true", "task_log", True),
    "keyColumns": ("a, b", "key_columns", ("a", "b")),
    "timeColumn": ("at", "time_column", "at"),
}
READ: dict[str, tuple[str, str, object]] = {
    "failOnDataLoss": ("false", "fail_on_data_loss", False),
    "taskLog": ("true", "task_log", True),
    "includeMetadata": ("true", "include_metadata", True),
}


def test_each_option_is_that_of_its_name_and_of_no_other() -> None:
    names = {field for _, field, _ in CONNECTION.values()}
    given = {name: text for name, (text, *_) in CONNECTION.items()}
    found = read(ledgerId="1", **given).connection
    assert {name: getattr(found, name) for name in names} == {
        field: value for _, field, value in CONNECTION.values()
    }


@pytest.mark.parametrize("option", WRITE)
def test_each_option_of_a_write_changes_its_own_value_alone(option: str) -> None:
    plain = write_options({**BASE, "stream": "s"}, streaming=True)
    text, name, value = WRITE[option]
    found = write_options({**BASE, "stream": "s", option: text}, streaming=True)
    assert getattr(plain, name) != value
    assert found == replace(plain, **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("option", READ)
def test_each_option_of_a_read_changes_its_own_value_alone(option: str) -> None:
    plain = read(stream="s")
    text, name, value = READ[option]
    assert getattr(plain, name) != value
    assert read(stream="s", **{option: text}) == replace(plain, **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("17", "17"),
        (" north ", " north "),
        ('{"customer": 17, "region": " north "}', (("customer", "17"), ("region", " north "))),
        ('{"region": "null"}', (("region", "null"),)),
    ],
)
def test_key_is_taken_as_it_is_written(text: str, key: object) -> None:
    assert read(stream="s", keyEquals=text).where.key == key


def test_key_that_is_null_is_refused() -> None:
    """It is not the text ``null``, and no row has it."""
    for text in ('{"region": null}', ' {"customer": 17, "region": null} '):
        with pytest.raises(ConfigurationError, match=r"keyEquals = .*'region' is null, and a key"):
            read(stream="s", keyEquals=text)


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({"streams": "ab,c"}, {"ab", "c"}),
        ({"streamPattern": "a"}, {"a"}),
        ({"streamPattern": "a|c"}, {"a", "c"}),
        ({"streamPattern": "a.*"}, {"a", "ab", "ab,c"}),
    ],
)
def test_streams_that_are_taken_are_those_of_the_whole_name(
    given: dict[str, str], taken: set[str]
) -> None:
    several = read(**given).several
    assert several is not None
    assert {name for name in ("a", "b", "ab", "c", "ab,c", "") if several.takes(name)} == taken


@pytest.mark.parametrize("text", ["a,,b", ",a", "a,", "", " , "])
def test_columns_without_a_name_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"option keyColumns = .* names of columns, sep"):
        write_options({**BASE, "stream": "s", "keyColumns": text}, streaming=True)


@pytest.mark.parametrize(
    ("text", "found_us"),
    [("-1000", -1_000_000), ("1000", 1_000_000), ("1969-12-31T23:59:59Z", -1_000_000)],
)
def test_event_time_may_lie_before_1970(text: str, found_us: int) -> None:
    where = read(stream="s", startingEventTime=text).where
    assert (where.start_us, where.end_us) == (found_us, None)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("startingPosition", '"latest"'),
        ("endingPosition", '"latest"'),
        ("startingTimestamp", "1000"),
        ("endingTimestamp", "1000"),
    ],
)
@pytest.mark.parametrize("given", [{"streams": "a,b"}, {"streamPattern": "[ab]"}, {"stream": "a"}])
def test_place_in_a_stream_that_is_not_read_is_refused(
    option: str, value: str, given: dict[str, str]
) -> None:
    read(False, **given, **{option: f'{{"a": {value}}}'})
    with pytest.raises(ConfigurationError, match=f"option {option}: 'c' is none of the streams"):
        read(False, **given, **{option: f'{{"a": {value}, "c": {value}}}'})


def test_schema_of_a_view_passes_over_the_options_of_its_writes() -> None:
    """One view serves SELECT and INSERT; its schema is asked for before it is known which."""
    given = {**BASE, "stream": "s", "ensembleSize": "1", "sinkId": "q", "txnAppId": "a"}
    assert read_options(given, streaming=None) == read_options(
        {**BASE, "stream": "s"}, streaming=None
    )


@pytest.mark.parametrize(
    ("option", "text", "name", "value"),
    [
        ("includeMetadata", " Kafka ", "kafka_columns", True),
        ("includeMetadata", " TRUE ", "include_metadata", True),
        ("failOnDataLoss", " False", "fail_on_data_loss", False),
        ("stream", " s ", "stream", "s"),
    ],
)
def test_spaces_and_case_around_a_word_mean_nothing(
    option: str, text: str, name: str, value: object
) -> None:
    assert getattr(read(**{"stream": "s", option: text}), name) == value


def test_spaces_around_names_of_streams_mean_nothing() -> None:
    several = read(streams=" a , b").several
    assert several is not None and several.names == ("a", "b")


@pytest.mark.parametrize("number", ["segment", "entry", "slot", "offset"])
def test_numbers_of_a_position_count_from_0(number: str) -> None:
    position = '{"offset": -1}' if number == "offset" else f'{{"segment": 0, "{number}": -1}}'
    if number == "segment":
        position = '{"segment": -1}'
    with pytest.raises(ConfigurationError, match="count from 0"):
        read(stream="s", startingPosition=position)


@pytest.mark.parametrize(
    ("text", "value"),
    [("user:word", "user:word"), (":", ":"), ("env:LEDGER_WORDS", " two words "), ("", "")],
)
def test_secret_is_taken_as_it_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, value: str
) -> None:
    monkeypatch.setenv("LEDGER_WORDS", " two words ")
    assert Secret(text).reveal() == value
    file = tmp_path / "secret"
    file.write_text("two words\n")
    assert Secret(f"file:{file}").reveal() == "two words", "without the end of its line"


@pytest.mark.parametrize("option", ["readTimeout", "speculativeReadDelay", "maxTriggerDelay"])
def test_time_that_no_timer_can_wait_for_is_refused_with_its_option(option: str) -> None:
    """The client would refuse it later, under a name of its own."""
    with pytest.raises(ConfigurationError, match=rf"{option} .*at most 36500d"):
        read(**{"stream": "s", "minRowsPerTrigger": "1", option: "36501d"})
