"""A simulated bookie's way to the keys of ledgers: the real look-up, over SimZookeeper."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bookie_server.first_contact import Answer, CopyAnswer
from bookie_server.ledger_keys import MetadataKeys
from spark_ledger.lab.simulation.loop import Process
from spark_ledger.types import LedgerId
from tests.sim.zookeeper import SimZookeeper


class SimKeys:
    """Implements ``LedgerKeys`` for one run of a bookie. ``run`` runs a piece of the bookie."""

    def __init__(
        self,
        zookeeper: SimZookeeper,
        process: Process,
        run: Callable[[Callable[[], None]], None],
    ) -> None:
        self._zookeeper = zookeeper
        self._process = process
        self._run = run
        self._keys: MetadataKeys | None = None

    @property
    def found(self) -> int:
        """See ``MetadataKeys.found``."""
        return self._keys.found if self._keys is not None else 0

    def look_up(self, ledger_id: LedgerId, answer: Answer) -> None:
        """See ``first_contact.LedgerKeys``."""
        self._known().look_up(ledger_id, lambda found: self._run(partial(answer, found)))

    def look_up_copy(self, ledger_id: LedgerId, answer: CopyAnswer) -> None:
        """See ``first_contact.LedgerKeys``."""
        self._known().look_up_copy(ledger_id, lambda found: self._run(partial(answer, found)))

    def _known(self) -> MetadataKeys:
        if self._keys is None:
            self._keys = MetadataKeys(self._zookeeper.stores[self._process.name])
        return self._keys
