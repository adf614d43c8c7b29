"""Rot anywhere in a small store: right data or a named error (see ``rot`` and ``index_rot``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.index_rot import DIED, WRONG, rot_index
from tests.crash.rot import CUT, FLIP, ZEROS, rot
from tests.crash.scrubbed import scrub_rot
from tests.effort import (
    INDEX_ROT_SAMPLES,
    ROT_SAMPLES,
    ROT_SEEDS,
    SCRUBBED_FLIPS,
    Share,
    in_shares,
)

SHORT_SEED = 3


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", in_shares([SHORT_SEED, 4], ROT_SEEDS))
def test_damage_to_any_file_but_the_index_is_harmless_or_refused(seed: int) -> None:
    samples = ROT_SAMPLES.test if seed == SHORT_SEED else ROT_SAMPLES.proof
    tally = rot(seed, samples=samples)
    print(tally.as_json())
    assert tally.damages > samples // 2
    assert set(tally.by_outcome) == {"right", "unreadable", "refused"}
    kinds = {name.split(", ")[0] for name in tally.by_file}
    assert {"bookie.json", "entries.log", "journal.log", "index.json"} <= kinds
    assert {name.split(", ")[1] for name in tally.by_file} == {FLIP, ZEROS, CUT}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "samples", in_shares([INDEX_ROT_SAMPLES.test, INDEX_ROT_SAMPLES.proof], Share(1, 2))
)
def test_damage_to_the_index_is_harmless_or_refused(samples: int, tmp_path: Path) -> None:
    seed = 5
    outcomes = rot_index(tmp_path, seed, samples=samples)
    print(f"seed {seed}", dict(outcomes))
    assert outcomes[WRONG] == outcomes[DIED] == 0
    assert outcomes["refused"] and outcomes["unreadable"] and outcomes["right"]


@pytest.mark.leaves_open("file", reason="errors in the log that pytest keeps hold them")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "flips", in_shares([SCRUBBED_FLIPS.test, SCRUBBED_FLIPS.proof], Share(1, 2))
)
def test_flipped_bytes_are_found_by_one_scrub_refilled_and_not_served(
    flips: int, tmp_path: Path
) -> None:
    figures = scrub_rot(tmp_path / "bookie", 5, flips=flips)
    print(figures)
    assert figures["damaged_blocks"] > flips // 2 and figures["damaged_ledgers_of_the_index"] > 1
