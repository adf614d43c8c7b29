"""The plan of faults that a seed gives: repeatable, complete, without collisions."""

from __future__ import annotations

import pytest

from tests.chaos.faults import MIXES, Fault, plan


def make_plan(seed: int, mix: str, seconds: float = 120.0) -> list[Fault]:
    return plan(seed, seconds, mix, bookies=4, clients=3)


@pytest.mark.parametrize("mix", sorted(MIXES))
def test_plan_of_a_seed_is_repeatable_and_fits_its_time(mix: str) -> None:
    for seed in range(20):
        made = make_plan(seed, mix)
        assert made == make_plan(seed, mix)
        assert made != make_plan(seed + 1, mix)
        assert all(f.start_s >= 0 and f.start_s + f.seconds <= 120 for f in made)
        assert [f.start_s for f in made] == sorted(f.start_s for f in made)


def test_plan_uses_every_kind_before_it_repeats_one() -> None:
    kinds = [fault.kind for fault in make_plan(5, "all", seconds=600)]
    assert set(kinds) == set(MIXES["all"])
    counts = [kinds.count(kind) for kind in MIXES["all"]]
    assert max(counts) <= min(counts) + 3


def test_plan_never_hits_one_server_twice_at_a_time() -> None:
    for seed in range(30):
        made = make_plan(seed, "all")
        for at, one in enumerate(made):
            for other in made[at + 1 :]:
                if other.start_s < one.start_s + one.seconds:
                    assert one.track != other.track
                    same = one.target == other.target in ("bookie", "disk")
                    assert not (same and set(one.bookies) & set(other.bookies))
                    targets = {one.target, other.target}
                    assert "all" not in targets or {"client", "disk"} & targets
