"""What the answers of a bookie to adds are taken for: who hears them, and what they blame."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_ledger.client.appenders import Appenders
from spark_ledger.protocol.events import OpenAppender
from spark_ledger.transport.base import AddResult
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId
from tests.unit.spark_ledger.client.world import World, run_virtually


class Opened:
    """An appender of the transport, which reports until it is closed."""

    def __init__(self, bookie_id: BookieId, **options: Any) -> None:
        self.bookie_id = bookie_id
        self.is_closed = False
        self._on_result = options["on_result"]

    def close(self) -> None:
        self.is_closed = True

    def report(self, status: BookieStatus) -> None:
        assert not self.is_closed
        self._on_result(AddResult(self.bookie_id, status, EntryId(0), ""))


class Made:
    """Appenders over nothing: what was opened, whom they suspect, what the machine is fed."""

    def __init__(self) -> None:
        self.opened: list[Opened] = []
        self.suspected: list[str] = []
        self.fed: list[object] = []
        context = SimpleNamespace(
            transport=SimpleNamespace(open_appender=self._open), suspect=self.suspected.append
        )
        loop = SimpleNamespace(feed=self.fed.append, feed_acknowledgement=self.fed.append)
        self.appenders = Appenders(
            cast("Any", context), LedgerId(1), cast("Any", loop), access_key=b"", recovery=False
        )

    def _open(self, bookie_id: BookieId, _ledger_id: LedgerId, **options: Any) -> Opened:
        self.opened.append(Opened(bookie_id, **options))
        return self.opened[-1]

    def open(self, bookie_index: int, name: str) -> Opened:
        self.appenders.open(OpenAppender(bookie_index, BookieId(name)))
        return self.opened[-1]


def test_appender_that_is_opened_in_the_place_of_another_silences_that_one() -> None:
    """Late answers of the bookie that was replaced would count for the new one."""
    made = Made()
    beside, before = made.open(0, "b0"), made.open(1, "b1")
    after = made.open(1, "b2")
    assert (beside.is_closed, before.is_closed, after.is_closed) == (False, True, False)
    made.appenders.close_all()
    assert beside.is_closed and after.is_closed


@pytest.mark.parametrize(
    ("status", "suspected"),
    [
        (BookieStatus.OK, []),
        (BookieStatus.FENCED, []),
        (BookieStatus.TOO_MANY_REQUESTS, []),
        (BookieStatus.IO_ERROR, ["b0"]),
        (BookieStatus.TIMEOUT, ["b0"]),
    ],
)
def test_only_what_is_wrong_with_a_bookie_makes_it_suspected(
    status: BookieStatus, suspected: list[str]
) -> None:
    made = Made()
    made.open(0, "b0").report(status)
    assert made.suspected == suspected and len(made.fed) == 1


def test_bookie_that_was_busy_once_gets_new_ledgers_without_a_question() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        world.bookies[BookieId("b1")].refuse_next = BookieStatus.TOO_MANY_REQUESTS, "busy"
        assert await writer.append(b"0") == 0
        assert client.context.suspects.now() == set()
        await writer.close()

    run_virtually(test)
