"""Ledgers that a connection could not close, or whose creator was not told of them: closed once
ZooKeeper answers again.

While their owner lives the keeper leaves them alone (rule K3), and an open ledger is never deleted.
So a process that runs for months would leave one open ledger for each outage of ZooKeeper.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from spark_ledger.errors import (
    LedgerClosedError,
    LedgerError,
    MetadataRestoredError,
    NotFoundError,
)
from spark_ledger.limits.client import LEFT_OPEN_DELAY_S, LEFT_OPEN_DELAY_S_MAX, LEFT_OPEN_MAX
from spark_ledger.tasks import cancel
from spark_ledger.types import LedgerId

logger = logging.getLogger(__name__)

Close: TypeAlias = Callable[[LedgerId], Awaitable[object]]
"""Closes a ledger."""


class LeftOpen:
    """Closes ledgers whose writer has ended, one after the other. Belongs to one loop."""

    def __init__(self, recover: Close) -> None:
        self._recover = recover
        self._waiting: deque[tuple[LedgerId, Close]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        """Set during a pause. No task, which may be made while ``asyncio.run`` ends: that cancels
        those that there were before, and Python warns of the others."""
        self._pause_s = LEFT_OPEN_DELAY_S
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def ledger_ids(self) -> list[LedgerId]:
        """Those that are still to be closed, the one that is next first."""
        return [ledger_id for ledger_id, _ in self._waiting]

    def add(self, ledger_id: LedgerId, close: Close | None = None) -> None:
        """Close a ledger later, by recovery or by ``close``, unless it waits for that already. Its
        writer must have ended: recovery fences it."""
        if self._is_closed or ledger_id in self.ledger_ids:
            return
        self._wait(ledger_id, close or self._recover)
        if self._timer is None and (self._task is None or self._task.done()):
            self._pause(LEFT_OPEN_DELAY_S)

    def _wait(self, ledger_id: LedgerId, close: Close) -> None:
        """Behind all others; of too many the first one goes."""
        if len(self._waiting) == LEFT_OPEN_MAX:
            logger.warning(
                "ledger %d is left open until this process ends: %d others wait to be closed",
                self._waiting.popleft()[0],
                LEFT_OPEN_MAX,
            )
        self._waiting.append((ledger_id, close))

    async def close(self) -> None:
        """The connection ends: what is still open is the keeper's (rule K3)."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            await cancel(self._task)

    def _pause(self, delay_s: float) -> None:
        self._pause_s = delay_s
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._go_on)

    def _go_on(self) -> None:
        self._timer = None
        self._task = asyncio.get_running_loop().create_task(self._close_next())

    async def _close_next(self) -> None:
        ledger_id, close = self._waiting.popleft()
        delay_s = LEFT_OPEN_DELAY_S
        try:
            await close(ledger_id)
        except asyncio.CancelledError:
            if not self._is_closed:  # an application cancels all tasks of its loop
                self._wait(ledger_id, close)
                self._pause(LEFT_OPEN_DELAY_S)
            raise
        except NotFoundError:
            logger.info("ledger %d was deleted before it was closed", ledger_id)
        except MetadataRestoredError as error:  # it may be another one's by now
            logger.warning("ledger %d is not closed: %s", ledger_id, error)
        except LedgerClosedError:
            return  # the connection is closed
        except LedgerError as error:
            logger.debug("ledger %d cannot be closed yet: %s", ledger_id, error)
            self._wait(ledger_id, close)
            delay_s = min(2 * self._pause_s, LEFT_OPEN_DELAY_S_MAX)
        if self._waiting:
            self._pause(delay_s)
