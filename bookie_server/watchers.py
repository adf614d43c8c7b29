"""Who wants to hear that a ledger's last add confirmed grew, or that the ledger was fenced."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from functools import partial
from itertools import count, islice

from spark_ledger.limits.bookie import BOOKIE_WATCHERS_AT_ONCE
from spark_ledger.types import EntryId, LedgerId


class Watchers:
    """Callbacks by ledger. Everything here belongs to the service thread.

    Thousands may watch one ledger, and each has an answer to send when it is called: they are
    called some at a time. Who waits for an entry far ahead is not called for those before it: each
    entry of a busy ledger would wake all of them for nothing.
    """

    def __init__(self, post: Callable[[Callable[[], None]], None]) -> None:
        """``post`` runs a callable on the service thread, in a later turn."""
        self._post = post
        self._callbacks: dict[LedgerId, dict[int, Callable[[], None]]] = {}
        self._waiting: dict[LedgerId, list[tuple[int, int]]] = {}  # above what, and who: ascending
        self._due: dict[LedgerId, dict[int, None]] = {}  # who is to be called yet, in order
        self._tokens = count()

    def add(
        self, ledger_id: LedgerId, above: EntryId, callback: Callable[[], None]
    ) -> Callable[[], None]:
        """Call back from now on about what is higher than ``above``, until the callable that is
        returned is called."""
        token = next(self._tokens)
        self._callbacks.setdefault(ledger_id, {})[token] = callback
        insort(self._waiting.setdefault(ledger_id, []), (above, token))

        def cancel() -> None:
            watching = self._callbacks.get(ledger_id, {})
            if watching.pop(token, None) is None:
                return
            waiting = self._waiting[ledger_id]
            del waiting[bisect_left(waiting, (above, token))]
            if not watching:
                del self._callbacks[ledger_id], self._waiting[ledger_id]

        return cancel

    def notify(self, ledger_id: LedgerId, confirmed: EntryId | None = None) -> None:
        """Call all who watch the ledger for less than is confirmed now, soon, or all at all without
        that; a callback may cancel, its own or another."""
        if not self._callbacks or ledger_id not in self._callbacks:
            return
        waiting = self._waiting[ledger_id]
        end = len(waiting) if confirmed is None else bisect_left(waiting, (confirmed, -1))
        if not end:
            return
        now = dict.fromkeys([token for _above, token in waiting[:end]])
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
