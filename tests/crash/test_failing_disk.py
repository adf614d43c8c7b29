"""The nth disk operation fails, for every n: nothing false is acknowledged (``failures``)."""

from __future__ import annotations

import pytest

from tests.crash.failures import every_failure
from tests.effort import FAILING_SEEDS, in_shares


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", in_shares([71, 75], FAILING_SEEDS))
def test_every_operation(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")  # hundreds of journals fail, and each says so
    tally = every_failure(seed, every_how=False)
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
