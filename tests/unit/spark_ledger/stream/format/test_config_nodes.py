"""The configuration in each of its formats: what it keeps, and what no format of it may say."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from spark_ledger.errors import CorruptionError
from spark_ledger.stream.format import codec
from spark_ledger.stream.model import Retention, StreamConfig
from spark_ledger.types import LedgerId
from tests.unit.spark_ledger.stream.format.test_codec import changed

BEFORE = StreamConfig(
    name="flights",
    stream_id="abc",
    schemas=(pa.schema({"id": pa.int64(), "at": pa.timestamp("us", tz="UTC")}),),
    has_manifests=False,
)
SEALED = replace(BEFORE, has_manifests=True)
KEPT = replace(
    SEALED,
    has_retention=True,
    retention=Retention(age_s=1.5, size_bytes=20, rows=30),
    dropping=(LedgerId(7), LedgerId(5)),
)
PACKED = replace(KEPT, has_packs=True)
DECLARED = replace(SEALED, key_columns=("id",), time_column="at")


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (BEFORE, {"v": 1}),
        (SEALED, {"v": 2}),
        (replace(SEALED, has_retention=True), {"v": 3}),
        (
            KEPT,
            {
                "v": 3,
                "retention_age_s": 1.5,
                "retention_bytes": 20,
                "retention_rows": 30,
                "dropping": [7, 5],
            },
        ),
        (replace(PACKED, retention=Retention(rows=2), dropping=()), {"v": 4, "retention_rows": 2}),
        (
            DECLARED,
            {"v": 5, "level": 2, "key_columns": ["id"], "time_column": "at"},
        ),
        (
            replace(SEALED, key_columns=("id", "at")),
            {"v": 5, "level": 2, "key_columns": ["id", "at"]},
        ),
        (
            replace(SEALED, has_retention=True, time_column="at"),
            {"v": 5, "level": 3, "time_column": "at"},
        ),
        (
            replace(
                PACKED,
                retention=Retention(size_bytes=9),
                dropping=(),
                key_columns=("id",),
                time_column="at",
            ),
            {"v": 5, "level": 4, "retention_bytes": 9, "key_columns": ["id"], "time_column": "at"},
        ),
    ],
)
def test_configuration_of_each_format_is_read_as_written(
    config: StreamConfig, says: dict[str, object]
) -> None:
    """Names and values of what only some streams have do not change either."""
    data = codec.encode_config(config)
    always = json.loads(codec.encode_config(BEFORE)).keys() - {"v"}
    assert {name: value for name, value in json.loads(data).items() if name not in always} == says
    assert codec.decode_config(data, "p") == config


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (SEALED, {"retention_age_s": 1.5}, "retention in format version 2"),
        (SEALED, {"retention_bytes": 20}, "retention in format version 2"),
        (SEALED, {"retention_rows": 30}, "retention in format version 2"),
        (SEALED, {"dropping": [7]}, "retention in format version 2"),
        (DECLARED, {"retention_rows": 30}, "retention in format version 5"),
        (KEPT, {"retention_age_s": 0}, "a limit of nothing"),
        (KEPT, {"retention_bytes": 0}, "a limit of nothing"),
        (KEPT, {"retention_rows": 0}, "a limit of nothing"),
        (KEPT, {"dropping": []}, "a limit of nothing"),
        (KEPT, {"retention_rows": -1}, "retention of rows"),
        (PACKED, {"key_columns": ["id"]}, "key and time columns in format version 4"),
        (PACKED, {"level": 4}, "key and time columns in format version 4"),
        (DECLARED, {"v": 4}, "key and time columns in format version 4"),
        (DECLARED, {"level": 0}, "level 0"),
        (DECLARED, {"level": 5}, "level 5"),
        (DECLARED, {"time_column": "gone"}, "time column 'gone'"),
        (PACKED, {"v": 6}, "format version 6, but this program knows only 5"),
    ],
)
def test_configuration_that_no_program_writes_is_refused(
    config: StreamConfig, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(CorruptionError, match=f"node p: .*{message}"):
        codec.decode_config(changed(codec.encode_config(config), **changes), "p")
