"""Client settings: defaults, ranges, and the offer of the nearest name."""

from __future__ import annotations

import math
from dataclasses import fields

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


@pytest.mark.parametrize("field", [field.name for field in fields(ClientConfig)])
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300, 10**30, 10**400])
def test_number_that_no_timer_and_no_count_can_hold_is_refused(field: str, value: float) -> None:
    """Until now it was an OverflowError, no LedgerError, or an append that waited for ever."""
    with pytest.raises(ConfigurationError, match=rf"^{field} = "):
        build(ClientConfig, {field: value})


def test_longest_times_are_taken_and_the_bound_is_said() -> None:
    config = build(ClientConfig, {"read_timeout_s": 36_500 * 86_400, "session_timeout_s": 3600})
    assert config.session_timeout_s == 3600
    with pytest.raises(ConfigurationError, match=r"= 3600\.5: at most 3600\.0 is allowed"):
        build(ClientConfig, {"session_timeout_s": 3600.5})


def test_the_bound_in_flight_holds_more_than_a_message() -> None:
    with pytest.raises(ConfigurationError, match="bytes_in_flight_max"):
        build(ClientConfig, {"bytes_in_flight_max": 10})
