"""Parsers of what people and Spark write: offsets, options, configuration, URIs, positions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from bookie_server.config import parse as parse_bookie_config
from connector import option_parsers
from connector.options import read_options, write_options
from connector.read.offsets import (
    LastSegment,
    ledger_offset,
    ledger_position,
    stream_offset,
    stream_position,
)
from spark_ledger import amounts
from spark_ledger.cli.arguments.ddl import parse_columns
from spark_ledger.cli.arguments.positions import position as parse_cli_position
from spark_ledger.errors import ConfigurationError
from spark_ledger.metadata.uri import parse_uri
from spark_ledger.stream.model import check_stream_name
from spark_ledger.types import Dlsn, EntryId, LedgerId
from tests.fuzz.target import Parse, Target

_CONFIGURATION = """\
metadata = "zk://127.0.0.1:2181/ledgers"
rack = "/rack-1"
session_timeout_s = 10.0
[storage]
journal_directory = "journal"
ledger_directories = ["l0", "l1"]
journal_file_bytes = 4194304
[listen]
port = 3181
[admin]
enabled = false
"""
_URIS = (
    "zk://host:2181/ledgers",
    "zk://user:p%40ss@a:2181,b,[::1]:2182/a/b",
    "zk://127.0.0.1/x",
)
_READ = (
    {"metadata": "zk://h/l", "stream": "orders", "startingPosition": '{"segment": 3, "entry": 1}'},
    {"metadata": "zk://h/l", "ledgerId": "7", "readTimeout": "500ms", "failOnDataLoss": "true"},
    {
        "metadata": "zk://h/l",
        "path": "orders",
        "startingTimestamp": "2026-01-31T12:00:00Z",
        "maxRowsPerTrigger": "1000",
        "minPartitions": "4",
        "maxBytesPerPartition": "64m",
    },
)
_WRITE = (
    {"metadata": "zk://h/l", "stream": "orders", "compression": "zstd", "sinkId": "s"},
    {"metadata": "zk://h/l", "stream": "o", "ensembleSize": "3", "writeQuorum": "2",
     "ackQuorum": "1", "entryBytes": "1m", "createStream": "true"},
)  # fmt: skip
_VALUES = (
    (option_parsers.parse_whole_number(0), ("0", "17", "+5")),
    (amounts.parse_size_bytes(1), ("64k", "128m", "1 MiB", "1048576")),
    (amounts.parse_duration_s, ("500ms", "10s", "1.5h", "15")),
    (option_parsers.parse_boolean, ("true", "False")),
    (option_parsers.parse_timestamp_ms, ("1700000000000", "2026-01-31T12:00:00Z", "2026-01-31")),
    (
        option_parsers.parse_position,
        ("earliest", "latest", '{"segment": 3, "entry": 0, "slot": 2}'),
    ),
    (option_parsers.parse_transaction, ('{"sink": "orders", "transaction": 7}',)),
)
_DDL = ("id bigint not null, name string", "price decimal(10,2), at timestamp")


def text_targets() -> list[Target]:
    """All targets of this file."""
    last = LastSegment(2, EntryId(4), LedgerId(7))
    made = stream_offset(Dlsn(3, 1), "5f2a", last), stream_offset(Dlsn(3, 1, 5), "5f2a")
    offsets = [json.dumps(each).encode() for each in made]
    raw = [json.dumps(ledger_offset(LedgerId(7), EntryId(9))).encode()]
    return [
        _target("stream offset", offsets, _json(lambda o: stream_position(o)), 15_000),
        _target("ledger offset", raw, _json(lambda o: ledger_position(o, LedgerId(7))), 15_000),
        _target("read options", _dumped(_READ), _options(read_options), 8_000),
        _target("write options", _dumped(_WRITE), _options(write_options), 8_000),
        *(
            _target(f"option value {number}", _encoded(texts), _text(parse), 6_000, ValueError)
            for number, (parse, texts) in enumerate(_VALUES)
        ),
        _target("bookie configuration", [_CONFIGURATION.encode()],
                _text(lambda text: parse_bookie_config(text, Path("/etc/bookie.toml"))), 3_000),
        _target("metadata URI", _encoded(_URIS), _text(parse_uri), 40_000),
        _target("stream name", _encoded(("orders", "a.b-c_9")), _text(check_stream_name), 10_000),
        _target("position of the command", _encoded(("earliest", "3:0:5", '{"segment": 3}')),
                _text(_cli_position), 8_000, click.BadParameter),
        _target("columns of the command", _encoded(_DDL), _text(parse_columns), 4_000),
    ]  # fmt: skip


def _target(
    name: str,
    corpus: list[bytes],
    parse: Parse,
    share: int,
    error: type[Exception] = ConfigurationError,
) -> Target:
    return Target(name, corpus, parse, (error, _NotTextError), share, is_text=True)


class _NotTextError(Exception):
    """The input never reaches the parser, because its caller gives it only text, or JSON."""


def _encoded(texts: tuple[str, ...]) -> list[bytes]:
    return [text.encode() for text in texts]


def _dumped(options: tuple[dict[str, str], ...]) -> list[bytes]:
    return [json.dumps(each).encode() for each in options]


def _text(parse: Any) -> Parse:
    def parse_text(data: bytes) -> object:
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            text = data.decode("latin-1")
        return parse(text)

    return parse_text


def _json(parse: Any) -> Parse:
    """Spark gives the parser the result of ``json.loads`` on the checkpoint's text."""

    def parse_json(data: bytes) -> object:
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise _NotTextError from error
        if not isinstance(found, dict):
            raise _NotTextError
        return parse(found)

    return parse_json


def _options(parse: Any) -> Parse:
    """Spark gives every option as text under a lower-case key."""

    def parse_options(found: dict[str, object]) -> object:
        raw = {name.lower(): value for name, value in found.items() if isinstance(value, str)}
        return parse(raw, streaming="sinkid" in raw or "maxrowspertrigger" in raw)

    return _json(parse_options)


def _cli_position(text: str) -> object:
    return parse_cli_position(None, None, text)  # type: ignore[arg-type]
