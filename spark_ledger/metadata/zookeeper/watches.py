"""Watches over ZooKeeper's one-shot ones: armed again after each event and each reconnect.

Runs on the store's loop; kazoo's thread does no more than post to it. A path is watched twice at
the server: ``exists`` reports data, creation and deletion, ``get_children`` the children.
ZooKeeper answers one session's requests in order, so a read that is sent after the arming cannot
miss a change: subscribers are called only after it. Arming what stands already does no harm (the
server and kazoo keep sets), so nothing here remembers what stands.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import NoAuthError
from kazoo.protocol.states import EventType, WatchedEvent

from spark_ledger.metadata.callbacks import Subscription

if TYPE_CHECKING:
    from kazoo.client import KazooClient

logger = logging.getLogger(__name__)


class _PathWatch:
    """One watched node and its subscribers. Called by kazoo's thread, it posts."""

    def __init__(self, table: WatchTable, path: str) -> None:
        self.path = path
        self.subscriptions: list[Subscription] = []
        self._table = table

    def on_data_event(self, event: WatchedEvent) -> None:
        # An event of no type says that the connection broke; the reconnect arms everything again.
        if event.type != EventType.NONE:
            self._table.post(lambda: self._table.fired(self, data=True))

    def on_children_event(self, event: WatchedEvent) -> None:
        if event.type != EventType.NONE:
            self._table.post(lambda: self._table.fired(self, data=False))

    def on_armed(self, result: Any) -> None:
        # A missing node takes no children watch; its creation fires the data watch, which arms
        # both. A lost connection is made good by the reconnect. Only a refusal is worth a word.
        if isinstance(result.exception, NoAuthError):
            logger.warning("metadata node %r: the credentials do not allow a watch", self.path)


class WatchTable:
    """All watches of one store. ``client`` gives its present client, ``absolute`` a server path."""

    def __init__(self, client: Callable[[], KazooClient], absolute: Callable[[str], str]) -> None:
        self._client = client
        self._absolute = absolute
        self._loop = asyncio.get_running_loop()
        self._watches: dict[str, _PathWatch] = {}

    def add(self, path: str, callback: Callable[[], None]) -> Subscription:
        """Watch a path; a read sent after this returns misses no later change."""
        watch = self._watches.get(path)
        if watch is None:
            watch = self._watches[path] = _PathWatch(self, path)
            self._arm(watch, data=True)
        subscription = Subscription(callback, lambda gone: self._remove(path, gone))
        watch.subscriptions.append(subscription)
        return subscription

    def on_reconnect(self) -> None:
        """Arm everything at the new connection, and report: changes may have been missed."""
        for watch in list(self._watches.values()):
            self.fired(watch, data=True)

    def cancel_all(self) -> None:
        for watch in list(self._watches.values()):
            for subscription in list(watch.subscriptions):
                subscription.cancel()

    def post(self, action: Callable[[], None]) -> None:
        """Run on the loop. For kazoo's thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            self._loop.call_soon_threadsafe(action)

    def fired(self, watch: _PathWatch, *, data: bool) -> None:
        if self._watches.get(watch.path) is watch:
            self._arm(watch, data=data)
            for subscription in watch.subscriptions:
                subscription.notify()

    def _remove(self, path: str, subscription: Subscription) -> None:
        watch = self._watches[path]
        watch.subscriptions.remove(subscription)
        if not watch.subscriptions:
            del self._watches[path]  # a server watch that still stands fires once, into nothing

    def _arm(self, watch: _PathWatch, *, data: bool) -> None:
        """Send for the server's watches. Off line, the reconnect does it."""
        client = self._client()
        if not client.connected:
            return
        path = self._absolute(watch.path)
        if data:
            client.exists_async(path, watch=watch.on_data_event).rawlink(watch.on_armed)
        children = client.get_children_async(path, watch=watch.on_children_event)
        children.rawlink(watch.on_armed)
