"""Client settings: defaults, ranges, and the offer of the nearest name."""

from __future__ import annotations

import pytest

from spark_ledger.config import ClientConfig, build
from spark_ledger.errors import ConfigurationError


def test_values_replace_defaults() -> None:
    config = build(ClientConfig, {"add_timeout_s": 2})
    assert config.add_timeout_s == 2
    assert config.read_timeout_s == ClientConfig().read_timeout_s


def test_a_misspelt_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'add_timeout_s'"):
        build(ClientConfig, {"add_timout_s": 2})
    with pytest.raises(ConfigurationError, match="valid are: add_timeout_s"):
        build(ClientConfig, {"zzz": 2})


@pytest.mark.parametrize("value", [0, -1, "5", None, True])
def test_values_are_positive_numbers(value: object) -> None:
    with pytest.raises(ConfigurationError, match="add_timeout_s"):
        build(ClientConfig, {"add_timeout_s": value})


def test_the_bound_in_flight_holds_more_than_a_message() -> None:
    with pytest.raises(ConfigurationError, match="bytes_in_flight_max"):
        build(ClientConfig, {"bytes_in_flight_max": 10})
