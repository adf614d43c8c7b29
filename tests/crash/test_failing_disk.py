"""The nth disk operation fails, for every n: nothing false is acknowledged (``failures``)."""

from __future__ import annotations

import pytest

from tests.crash.failures import every_failure
from tests.effort import FAILING_SEEDS, FAILING_WAYS, in_shares

SHORT_SEED = 71


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", in_shares([SHORT_SEED, 75], FAILING_SEEDS))
def test_failure_of_any_operation_is_never_acknowledged(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    ways = FAILING_WAYS.test if seed == SHORT_SEED else FAILING_WAYS.proof
    caplog.set_level("CRITICAL")  # hundreds of journals fail, and each says so
    tally = every_failure(seed, ways=ways)
    print(tally.as_json())
    assert tally.operations > 120, "the workload uses the disk often"
    assert tally.refused_to_open and tally.ended and tally.ran_on
    kinds = {site.split(" in ")[0] for site in tally.by_site}
    assert kinds >= {
        "create",
        "fdatasync",
        "list",
        "open",
        "pread",
        "preallocate",
        "pwritev",
        "rename",
        "sync_directory",
    }
