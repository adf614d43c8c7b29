"""Who wants to hear that a ledger's last add confirmed grew, or that the ledger was fenced."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count, islice

from spark_ledger.limits.bookie import BOOKIE_WATCHERS_AT_ONCE
from spark_ledger.types import LedgerId


class Watchers:
    """Callbacks by ledger. Everything here belongs to the service thread.

    Thousands may watch one ledger, and each has an answer to send when it is called: they are
    called some at a time.
    """

    def __init__(self, post: Callable[[Callable[[], None]], None]) -> None:
        """``post`` runs a callable on the service thread, in a later turn."""
        self._post = post
        self._callbacks: dict[LedgerId, dict[int, Callable[[], None]]] = {}
        self._due: dict[LedgerId, dict[int, None]] = {}  # who is to be called yet, in order
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
        """Call all who watch the ledger, soon; a callback may cancel, its own or another."""
        if not self._callbacks or ledger_id not in self._callbacks:
            return
        now = dict.fromkeys(self._callbacks[ledger_id])
        if ledger_id in self._due:
            self._due[ledger_id].update(now)  # who is there already keeps its place
        else:
            self._due[ledger_id] = now
            self._call(ledger_id)

    def _call(self, ledger_id: LedgerId) -> None:
        due = self._due[ledger_id]
        for token in list(islice(due, BOOKIE_WATCHERS_AT_ONCE)):
            del due[token]
            callback = self._callbacks.get(ledger_id, {}).get(token)
            if callback is not None:
                callback()
        if due:
            self._post(partial(self._call, ledger_id))
        else:
            del self._due[ledger_id]
