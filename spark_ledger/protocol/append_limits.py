"""The numbers that an append machine is given: they come from the client's configuration.

Their defaults, with the reasons, are in ``spark_ledger.limits.client``.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_ledger.limits.client import (
    ADD_TIMEOUT_S,
    EXPLICIT_LAC_DELAY_S,
    REPLACEMENT_RETRY_S,
    SLOW_BOOKIE_GRACE_S,
    STALLED_BOOKIES_WAIT_S,
    WRITER_BYTES_IN_FLIGHT_MAX,
    WRITER_ENTRY_BYTES,
)


@dataclass(frozen=True, slots=True)
class AppendLimits:
    """When a silent bookie counts as failed, and how much may be in flight (rule P11).

    ``slow_bookie_grace_s`` is meant to be below ``add_timeout_s``: it applies only while so much
    payload is in flight, and only to bookies that the ack quorum can do without.
    """

    add_timeout_s: float = ADD_TIMEOUT_S
    slow_bookie_grace_s: float = SLOW_BOOKIE_GRACE_S
    bytes_in_flight_max: int = WRITER_BYTES_IN_FLIGHT_MAX
    entry_bytes: int = WRITER_ENTRY_BYTES
    """What each entry in flight counts for, beside its payload."""
    replacement_retry_s: float = REPLACEMENT_RETRY_S
    explicit_lac_delay_s: float = EXPLICIT_LAC_DELAY_S
    stalled_wait_s: float = STALLED_BOOKIES_WAIT_S

    @property
    def spare_after_s(self) -> float:
        """How long a bookie that can be spared may be silent behind so much payload: never longer
        than any other, since all who are silent by then are looked at together (rule P11)."""
        return min(self.slow_bookie_grace_s, self.add_timeout_s)

    def silence_s(self, payload_bytes: int) -> float:
        """How long a bookie may be silent until somebody has to look at it, with so much payload in
        flight. What entries take beside it does not count: of small ones a single batch is above
        the bound, and a bookie would go with each pause of its disk."""
        has_much = payload_bytes >= self.bytes_in_flight_max
        return self.spare_after_s if has_much else self.add_timeout_s
