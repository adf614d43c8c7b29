"""ZooKeeper comes back without its data for a while, as from a wrong disk, then with all of them.

Nothing is lost by it, so everything is judged as if ZooKeeper had been away: nobody may take the
missing nodes for deletions, and all goes on by itself once they are back.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from spark_ledger.metadata.base import Create
from spark_ledger.metadata.cluster import CLUSTER_PATH
from spark_ledger.metadata.codec import ClusterNode
from spark_ledger.metadata.json_nodes import encode_node
from spark_ledger.metadata.memory import _Node
from tests.sim.zookeeper import Backup

if TYPE_CHECKING:
    from tests.sim.world import World

_NOTHING: Final = Backup(0, {"": _Node(b"")})


class Emptier:
    """Takes the data away, and brings them back."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.draw: random.Random = world.random_for("empties")
        self._data: Backup | None = None
        tree = world.zookeeper.tree
        if (node := tree.peek(CLUSTER_PATH)) is None:
            tree.apply([Create(CLUSTER_PATH, encode_node(ClusterNode(cluster_id="sim")))])
            node = tree.peek(CLUSTER_PATH)
        assert node is not None, "it was made"
        world.zookeeper.cluster = node.value
        for store in world.zookeeper.stores.values():
            store.know(node.value)
        self._later(self.draw.choice([0.1, 0.5, 1.5]), self._go_down)

    def _later(self, at_most_s: float, work: Callable[[], None]) -> None:
        after_s = at_most_s * self.draw.uniform(0.1, 1.0)
        self.world.loop.later(after_s, None, self._unless_healing, work)

    def _unless_healing(self, work: Callable[[], None]) -> None:
        if not self.world.healing:
            work()

    def _go_down(self) -> None:
        self.world.zookeeper.restoring = True
        self._later(0.4, self._come_back)

    def _come_back(self) -> None:
        """With nothing, or with everything again."""
        zookeeper, data = self.world.zookeeper, self._data
        if data is not None:
            self._data = None
            zookeeper.restore(data, shows=False)
            self.world.say("ZooKeeper has its data again")
            return
        self._data = zookeeper.tree.back_up()
        # With an ensemble nobody can tell it by the number of a change.
        zookeeper.restore(_NOTHING, shows=self.draw.random() < 0.3)
        self.world.fault("metadata away", "ZooKeeper came back without its data")
        self._later(self.draw.choice([0.2, 1.0, 3.0]), self._go_down)

    def heal(self) -> None:
        """Whatever else is mended, the data are there."""
        if self._data is not None:
            self._come_back()
