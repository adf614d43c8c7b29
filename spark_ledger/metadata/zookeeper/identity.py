"""Which store this is: a ZooKeeper that lost its data must not pass for the one it was."""

from __future__ import annotations

from collections.abc import Callable

from spark_ledger.errors import ConfigurationError
from spark_ledger.metadata.uri import ZooKeeperAddress


class StoreIdentity:
    """What tells a store from any other, as it was when its node was read first.

    A server that comes back empty would give out ledger ids again under which bookies still hold
    entries. Its clients have lost their sessions then, so each new session is checked before it is
    used. All fields belong to the store's loop.
    """

    def __init__(
        self, address: ZooKeeperAddress, path: str, identity_in: Callable[[bytes], bytes]
    ) -> None:
        """``identity_in``: the part of the node that never changes; what else is in it may."""
        self.path = path
        self._identity_in = identity_in
        self.fault: ConfigurationError | None = None
        """Why the store that answers is not to be used."""
        self._address = address
        self._identity: bytes | None = None

    @property
    def is_known(self) -> bool:
        """True once the node was read, so that there is something to compare with."""
        return self._identity is not None

    def learn(self, path: str, data: bytes) -> None:
        """A node was read. Keep what the identity's node held the first time."""
        if path == self.path and self._identity is None:
            self._identity = self._identity_in(data)

    def check(self, found: bytes | None) -> None:
        """Compare with what a new session found, None for no node, and set ``fault``."""
        self.fault = None
        if found is None or self._identity_in(found) != self._identity:
            self.fault = ConfigurationError(
                f"ZooKeeper at {self._address.hosts} no longer holds the cluster that was at "
                f"{self._address.root}: its node {self.path!r} is "
                f"{'missing' if found is None else 'another one'}. Restore ZooKeeper's data, or "
                "connect again to use the cluster that is there now; nothing was changed"
            )
