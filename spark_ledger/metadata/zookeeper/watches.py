"""Watches over ZooKeeper's one-shot ones: armed again after each event and each reconnect.

A path is watched twice at the server: ``exists`` reports data, creation and deletion,
``get_children`` the children. ZooKeeper answers one session's requests in order, so a read that is
sent after the arming cannot miss a change: subscribers are called only after it. Arming a watch
that is armed already does no harm (the server and kazoo keep sets).

Nobody can take a watch back, neither from the server nor from kazoo: it stands until it fires, or
the connection breaks. So what stands for a path is kept as long, and used again by whoever watches
the path next. Otherwise each tail of a ledger that does not change would leave one behind.

All fields belong to the store's loop. The three methods that kazoo's threads call
(``_PathWatch.on_...``) read only fields that never change, and post to the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from kazoo.exceptions import NoAuthError
from kazoo.protocol.states import EventType

from spark_ledger.metadata.base import Subscription
from spark_ledger.metadata.zookeeper.kazoo_api import Event, Result
from spark_ledger.metadata.zookeeper.session import Session

logger = logging.getLogger(__name__)


class _PathWatch:
    """One watched node and its subscribers, or what stands at the server without any."""

    def __init__(self, table: WatchTable, path: str) -> None:
        self.path = path
        self.subscriptions: list[Subscription] = []
        self.data_stands = False
        self.children_stand = False
        self._table = table

    @property
    def is_of_no_use(self) -> bool:
        """Nobody watches, and nothing stands that somebody could use again."""
        return not (self.subscriptions or self.data_stands or self.children_stand)

    def on_data_event(self, event: Event) -> None:
        """In kazoo's thread: the node was created, changed or deleted."""
        # An event of no type says that the connection broke; the reconnect arms everything again.
        if event.type != EventType.NONE:
            self._table.post(lambda: self._table.fired(self, data=True))

    def on_children_event(self, event: Event) -> None:
        """In kazoo's thread: a child came or went."""
        if event.type != EventType.NONE:
            self._table.post(lambda: self._table.fired(self, data=False))

    def on_armed(self, result: Result[object]) -> None:
        """In kazoo's thread: the server has armed a watch, or not."""
        # A missing node takes no children watch; its creation fires the data watch, which arms
        # both. After a lost connection the reconnect arms again. Only a refusal stays.
        if isinstance(result.exception, NoAuthError):
            logger.warning("metadata node %r: the credentials do not allow a watch", self.path)


class WatchTable:
    """All watches of one store."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._watches: dict[str, _PathWatch] = {}

    def add(self, path: str, callback: Callable[[], None]) -> Subscription:
        """Watch a path; a read sent after this returns misses no later change."""
        watch = self._watches.setdefault(path, _PathWatch(self, path))
        if not watch.subscriptions:
            self._arm(watch, data=True)
        subscription = Subscription(callback, lambda gone: self._remove(path, gone))
        watch.subscriptions.append(subscription)
        return subscription

    def on_reconnect(self) -> None:
        """Arm everything at the new connection, and report: changes may have been missed."""
        for watch in list(self._watches.values()):
            watch.data_stands = watch.children_stand = False  # those went with the connection
            self.fired(watch, data=True)

    def close(self) -> None:
        """Call everybody back a last time: the store is closed. Idempotent."""
        for watch in list(self._watches.values()):
            for subscription in list(watch.subscriptions):
                subscription.close()

    def post(self, action: Callable[[], None]) -> None:
        """Run on the loop. For kazoo's threads."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            self._loop.call_soon_threadsafe(action)

    def fired(self, watch: _PathWatch, *, data: bool) -> None:
        """A watch was used up at the server: arm it again, then tell the subscribers."""
        if data:
            watch.data_stands = False
        else:
            watch.children_stand = False
        if watch.subscriptions:
            self._arm(watch, data=data)
            for subscription in watch.subscriptions:
                subscription.notify()
        self._forget_if_of_no_use(watch)

    def _remove(self, path: str, subscription: Subscription) -> None:
        watch = self._watches[path]
        watch.subscriptions.remove(subscription)
        self._forget_if_of_no_use(watch)

    def _forget_if_of_no_use(self, watch: _PathWatch) -> None:
        if watch.is_of_no_use and self._watches.get(watch.path) is watch:
            del self._watches[watch.path]

    def _arm(self, watch: _PathWatch, *, data: bool) -> None:
        """Send for the server's watches. Without a connection, the reconnect does it."""
        client = self._session.client
        if not client.connected:
            return
        path = self._session.address.absolute(watch.path)
        watch.children_stand = True
        if data:
            watch.data_stands = True
            client.exists_async(path, watch=watch.on_data_event).rawlink(watch.on_armed)
        children = client.get_children_async(path, watch=watch.on_children_event)
        children.rawlink(watch.on_armed)
