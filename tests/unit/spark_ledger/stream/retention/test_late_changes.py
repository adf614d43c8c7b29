"""The end of a stream beside transactions that arrive late, and steps that were cut off."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from spark_ledger.errors import (
    BookieUnavailableError,
    ConflictError,
    DataLossError,
    OutcomeUnknownError,
)
from spark_ledger.metadata.base import Operation, Put
from spark_ledger.stream.commit.commit_log import NamedLedgers
from spark_ledger.stream.model import Retention
from spark_ledger.stream.retention import live_names
from spark_ledger.stream.retention.live_names import LiveNames
from spark_ledger.types import LedgerId
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.packs.world import ClosedDeletions
from tests.unit.spark_ledger.stream.retention.test_giving_back import closed_commits
from tests.unit.spark_ledger.stream.retention.test_truncation import stream_of
from tests.unit.spark_ledger.stream.world import another, pages_of, root_of, run, small_manifests


class Late:
    """A store whose first change of the holds gets no reply, and takes effect before the nth call
    behind it; just before that somebody else truncates."""

    def __init__(self, store: Any, step: int, rival: Any) -> None:
        self._store = store
        self._rival = rival
        self._sent: Sequence[Operation] | None = None
        self.calls_left = step

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in ("get", "get_latest", "transaction"):
            return method

        async def called(*args: Any) -> Any:
            if self._sent is not None:
                self.calls_left -= 1
                if self.calls_left == 0:
                    with suppress(ConflictError):
                        await self._rival.retention.truncate((3,))
                    with suppress(ConflictError):
                        await self._store.transaction(self._sent)
            elif name == "transaction" and any(
                isinstance(each, Put) and each.path.endswith("/holds") for each in args[0]
            ):
                self._sent = args[0]
                raise OutcomeUnknownError("no answer")
            return await method(*args)

        return called


def test_hold_that_takes_effect_late_keeps_its_rows_or_is_refused_and_gone() -> None:
    """A hold that came behind a truncation keeps nothing, so nobody may be told that it does."""

    async def scenario(step: int) -> bool:
        ledgers, stream = await stream_of(4, retention=Retention(rows=9))
        rival = await another(ledgers)[1].open("s")
        other = await rival.retention.hold("other", (3,), for_s=60)
        store: Any = Late(stream._nodes.store, step, rival)
        stream._nodes.store = store
        made = None
        with suppress(DataLossError):
            made = await stream.retention.hold("slow", (1,), for_s=60)
        earliest = (await rival._watch.read()).earliest_commit
        found = await rival.retention.holds()
        assert found == ([other] if made is None else [other, made]), f"step {step}"
        assert earliest == (0 if made else 3), f"step {step}"
        return bool(store.calls_left > 0)

    steps = 1
    while not run(scenario(steps)):
        steps += 1
    assert steps > 2


def test_holds_that_are_over_at_once_are_taken_off_together() -> None:
    async def scenario() -> None:
        _, stream = await stream_of(4, retention=Retention(rows=1))
        holds = [
            await stream.retention.hold(name, (n,), for_s=for_s, size_bytes_max=size_bytes)
            for n, (name, for_s, size_bytes) in enumerate(
                [("a", 60, None), ("b", 600, 1), ("c", 60, None), ("d", 600, None)]
            )
        ]
        assert await stream.retention.release_void(holds[2].expires_ms) == holds[:3]
        assert await stream.retention.holds() == holds[3:]
        assert await stream.retention.release_void(holds[2].expires_ms) == []

    run(scenario())


@pytest.mark.parametrize("begin", [1, 2, 3, 4])
def test_page_that_went_with_a_step_that_was_cut_off_hides_no_commit_behind_it(
    begin: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever in a page the sweep goes on: what the next page names is given back too."""
    small_manifests(monkeypatch, leaf=4, fan_out=100)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await closed_commits(ledgers, 13)
        stream = await another(ledgers)[1].open("s")
        await stream.retention.truncate((12,))
        reclaimer = stream.retention.reclaimer(ClosedDeletions(ledgers), LiveNames())
        assert (await reclaimer.step(begin)).commits == begin
        pages = [each for each in await pages_of(stream) if each.first == 0]
        rows = [await stream._log.ledgers(range(begin, 4))] if begin < 4 else []
        for page in pages:
            ledgers.store.tree._nodes.pop(ledgers.ledgers[page.pointer.ledger_id].path, None)
        for named in rows:
            for each in named.values():
                for ledger_id in each.rows:
                    ledgers.store.tree._nodes.pop(ledgers.ledgers[ledger_id].path, None)
        later = await another(ledgers)[1].open("s")
        reclaimer = later.retention.reclaimer(ClosedDeletions(ledgers), LiveNames())
        assert (await reclaimer.step(12)).is_done
        assert root_of(ledgers).dropped == 12
        (last,) = (await later._log.ledgers([12])).values()
        left = {LedgerId(each) for each in ledgers.ledgers}
        assert left == last.rows, "the row that is kept, and no page of those before"

    run(scenario())


@pytest.mark.parametrize("failing", range(0, 10, 2))
@pytest.mark.parametrize("kept_max", [0, 100])
def test_look_at_live_commits_that_was_cut_off_hides_none_of_them(
    failing: int, kept_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger that a commit needs would be deleted, as nobody is known to name it."""
    monkeypatch.setattr(live_names, "COMMITS_PER_BUCKET", 2)
    is_down = True

    class Log:
        async def ledgers(self, numbers: Sequence[int]) -> dict[int, NamedLedgers]:
            if is_down and failing in numbers:
                raise BookieUnavailableError("down")
            return {n: NamedLedgers({LedgerId(n), LedgerId(n + 1)}, None) for n in numbers}

    async def scenario() -> None:
        nonlocal is_down
        log: Any = Log()
        names, ids = LiveNames(kept_max), [LedgerId(n) for n in range(20)]
        with pytest.raises(BookieUnavailableError):
            await names.named(log, ids, 0, 10)
        is_down = False
        assert await names.named(log, ids, 0, 10) == set(range(11))
        assert await names.named(log, ids, 3, 12) == set(range(3, 13))

    run(scenario())
