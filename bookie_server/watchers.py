"""Who wants to hear that a ledger's last add confirmed grew, or that the ledger was fenced."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from spark_ledger.types import LedgerId


class Watchers:
    """Callbacks by ledger. Everything here belongs to the service thread."""

    def __init__(self) -> None:
        self._callbacks: dict[LedgerId, dict[int, Callable[[], None]]] = {}
        self._tokens = count()

    def add(self, ledger_id: LedgerId, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back from now on, until the callable that is returned is called."""
        token = next(self._tokens)
        self._callbacks.setdefault(ledger_id, {})[token] = callback

        def cancel() -> None:
            watching = self._callbacks.get(ledger_id, {})
            watching.pop(token, None)
            if not watching:
                self._callbacks.pop(ledger_id, None)

        return cancel

    def notify(self, ledger_id: LedgerId) -> None:
        """Call everybody who watches the ledger; a callback may cancel, its own or another."""
        if not self._callbacks:
            return
        for callback in list(self._callbacks.get(ledger_id, {}).values()):
            callback()
