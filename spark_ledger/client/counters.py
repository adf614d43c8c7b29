"""What a client has done so far, in numbers: a task looks at them before and after."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ClientCounters:
    """Totals of one connection. Only its loop adds to them; any thread may look at them."""

    read_requests: int = 0
    """Requests for entries, each to one replica."""
    read_failovers: int = 0
    """Those among them that went to another replica because one had failed."""
    speculative_reads: int = 0
    """Those among them that went to another replica because one was slow."""
    entries_read: int = 0
    bytes_read: int = 0
    """Payload of the entries."""
    ensemble_changes: int = 0
    """Times that failed bookies of a ledger were replaced by others."""
    misplaced: int = 0
    """Choices of bookies that the cluster's placement policy has something against (rule P21)."""
    entries_shared: int = 0
    """Entries that a tail was given because it or another one had read them for all (rule P24).
    They count as read once."""

    def since(self, before: ClientCounters) -> ClientCounters:
        """What was added since a copy was made."""
        return ClientCounters(
            self.read_requests - before.read_requests,
            self.read_failovers - before.read_failovers,
            self.speculative_reads - before.speculative_reads,
            self.entries_read - before.entries_read,
            self.bytes_read - before.bytes_read,
            self.ensemble_changes - before.ensemble_changes,
            self.misplaced - before.misplaced,
            self.entries_shared - before.entries_shared,
        )
