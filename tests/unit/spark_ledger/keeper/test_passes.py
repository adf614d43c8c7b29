"""Passes: an outage breaks off one of them, the end of the connection or a stop ends all."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.errors import (
    LedgerClosedError,
    LedgerError,
    MetadataRestoredError,
    MetadataUnavailableError,
)
from spark_ledger.keeper.passes import run_passes
from tests.unit.virtual_time import run_in_virtual_time

PAUSE_S = 10.0


class Passes:
    """Passes with outcomes that a test chose, and when each began."""

    def __init__(self, *outcomes: Exception | None) -> None:
        self.outcomes = list(outcomes)
        self.stop = asyncio.Event()
        self.began_s: list[float] = []
        self.errors: list[LedgerError] = []

    async def one(self) -> None:
        """Ends as chosen; the last one asks to stop."""
        self.began_s.append(asyncio.get_running_loop().time())
        outcome = self.outcomes.pop(0)
        if not self.outcomes:
            self.stop.set()
        if outcome is not None:
            raise outcome

    async def run(self, *, pauses_first: bool = False) -> None:
        """All of them."""
        await run_passes(
            self.stop, PAUSE_S, self.one, self.errors.append, pauses_first=pauses_first
        )


@pytest.mark.parametrize("pauses_first", [False, True])
def test_pass_after_one_that_an_outage_broke_off_begins_a_pause_later(pauses_first: bool) -> None:
    async def main() -> None:
        passes = Passes(None, MetadataUnavailableError("away"), None)
        began_s = asyncio.get_running_loop().time()
        await passes.run(pauses_first=pauses_first)
        assert [str(error) for error in passes.errors] == ["away"]
        after_s = [began - began_s for began in passes.began_s]
        assert after_s == pytest.approx([(n + pauses_first) * PAUSE_S for n in range(3)])

    run_in_virtual_time(main())


def test_passes_when_the_connection_is_closed_end_without_a_word() -> None:
    async def main() -> None:
        passes = Passes(LedgerClosedError("closed"), None)
        await passes.run()
        assert len(passes.began_s) == 1
        assert not passes.errors

    run_in_virtual_time(main())


def test_passes_after_a_bug_raise_it() -> None:
    async def main() -> None:
        passes = Passes(AssertionError("ours"), None)
        with pytest.raises(AssertionError, match="ours"):
            await passes.run()

    run_in_virtual_time(main())


def test_passes_after_a_restore_end_and_say_so() -> None:
    """What they remember is of another history: a process that went on would do nothing for ever,
    or what nobody should."""

    async def main() -> None:
        passes = Passes(MetadataRestoredError("went back"), None)
        with pytest.raises(MetadataRestoredError, match="went back"):
            await passes.run()
        assert not passes.errors

    run_in_virtual_time(main())


def test_stop_in_the_pause_before_the_first_pass_lets_none_begin() -> None:
    async def main() -> None:
        passes = Passes(None)
        running = asyncio.create_task(passes.run(pauses_first=True))
        await asyncio.sleep(PAUSE_S / 2)
        passes.stop.set()
        await running
        assert not passes.began_s

    run_in_virtual_time(main())
