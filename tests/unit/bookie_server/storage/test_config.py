"""Storage settings that cannot work are refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie_server.storage.config import StorageConfig
from spark_ledger.errors import ConfigurationError
from spark_ledger.types import BookieId
from tests.unit.bookie_server.storage.support import small_config


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("journal_file_bytes", 100),
        ("journal_batch_bytes_max", 1),
        ("write_cache_bytes", 0),
        ("entry_log_bytes", 1),
        ("entry_log_bytes", 1 << 32),
        ("block_cache_bytes", -1),
        ("index_map_bytes", 1),
        ("flush_interval_s", 0.0),
    ],
)
def test_number_out_of_range_is_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=name):
        small_config(**{name: value})


def test_unusable_directories_are_refused() -> None:
    a, b = Path("/a"), Path("/b")
    with pytest.raises(ConfigurationError, match="ledger_directories is empty"):
        StorageConfig(a, (), BookieId("b"))
    with pytest.raises(ConfigurationError, match="different"):
        StorageConfig(a, (b, a), BookieId("b"))
    with pytest.raises(ConfigurationError, match="c must be an absolute path"):
        StorageConfig(a, (b, Path("c")), BookieId("b"))
    assert StorageConfig(a, (b,), BookieId("b")).directories == (a, b)
