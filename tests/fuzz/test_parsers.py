"""Malformed inputs to every parser, and proof that the loop sees what is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from bookie_server.storage import records
from tests.effort import FUZZED_INPUTS
from tests.fuzz import loop
from tests.fuzz.loop import FuzzError, fuzz
from tests.fuzz.metadata_targets import metadata_targets
from tests.fuzz.storage_targets import storage_targets
from tests.fuzz.stream_targets import stream_targets
from tests.fuzz.target import Target, only_what_was_written
from tests.fuzz.targets import all_targets
from tests.fuzz.text_targets import text_targets
from tests.fuzz.wire_targets import wire_targets

SEED = 4


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "targets", [storage_targets, wire_targets, metadata_targets, stream_targets, text_targets]
)
def test_parser_accepts_or_raises_its_named_errors(
    targets: Callable[[], list[Target]],
) -> None:
    group = targets()
    share = sum(target.share for target in group) / sum(target.share for target in all_targets())
    wanted = int(FUZZED_INPUTS.test * share) + 1
    outcomes = fuzz(group, inputs=wanted, seed=SEED)
    print(f"seed {SEED}", *outcomes, sep="\n")
    assert sum(outcome.inputs for outcome in outcomes) >= wanted
    for outcome in outcomes:
        assert outcome.refused or outcome.name in ("frames of a run", "entry log"), outcome


HEADERS = [records.pack_header(1, length, 5, 9, 0) for length in (3, 70_000)]


def parse_without_checksum(data: bytes) -> object:
    if len(data) < 24 or data[0] != 1:
        return None
    return records._HEADER.unpack(data[:20])


def raise_another_error(data: bytes) -> object:
    if data not in HEADERS:
        raise KeyError(data)
    return data


def hang(data: bytes) -> object:
    while data not in HEADERS:
        time.sleep(0.01)
    return data


def test_parser_that_ignores_its_checksum_is_found() -> None:
    judge = only_what_was_written(HEADERS, parse_without_checksum)
    target = Target("headers", HEADERS, parse_without_checksum, (), 1, judge)
    with pytest.raises(FuzzError, match="headers, seed 1, chunk 0: accepted"):
        fuzz([target], inputs=1000, seed=1)


def test_parser_that_raises_another_error_is_found() -> None:
    with pytest.raises(FuzzError, match="raised KeyError"):
        fuzz([Target("headers", HEADERS, raise_another_error, (ValueError,), 1)], inputs=9, seed=1)


def test_parser_that_hangs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "CHUNK_SECONDS_MAX", 1)
    with pytest.raises(FuzzError, match="no end after 1 s"):
        fuzz([Target("headers", HEADERS, hang, (), 1)], inputs=9, seed=1)


def test_inputs_follow_from_the_seed() -> None:
    seen: list[list[bytes]] = []
    for seed in (1, 1, 2):
        inputs: list[bytes] = []

        def keep(data: bytes, inputs: list[bytes] = inputs) -> object:
            inputs.append(data)
            return data

        fuzz([Target("kept", HEADERS, keep, (), 1)], inputs=50, seed=seed)
        seen.append(inputs)
    assert seen[0] == seen[1] != seen[2]
