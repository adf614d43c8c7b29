"""The raw work: which entries, how many in flight, for how long. The same for every system."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

KIB = 1 << 10
MIB = 1 << 20


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A closed loop: ``in_flight`` entries are always on their way, one is added for each that is
    confirmed. Each round writes a new ledger (or topic) and then reads it back whole.

    A round ends after ``round_s`` seconds or ``round_bytes_max`` bytes of payload, whichever comes
    first: replicated data fill a disk fast. ``failover`` measures the gap around a kill instead.
    """

    entry_bytes: int
    in_flight: int
    ensemble: tuple[int, int, int] = (3, 3, 2)
    warmup_s: float = 1.0
    round_s: float = 3.0
    round_bytes_max: int = 512 * MIB
    rounds: int = 3
    failover: bool = False

    @property
    def ops(self) -> tuple[str, ...]:
        """What its rows are of: one entry in flight leaves too little behind to read."""
        return ("append", "read") if self.in_flight > 1 else ("append",)

    def arguments(self) -> list[str]:
        """For the command line of a driver program, in any language."""
        return [
            str(self.entry_bytes),
            str(self.in_flight),
            *map(str, self.ensemble),
            f"{self.warmup_s:.3f}",
            f"{self.round_s:.3f}",
            str(self.round_bytes_max),
            str(self.rounds),
            "failover" if self.failover else "throughput",
        ]

    @classmethod
    def from_arguments(cls, arguments: Sequence[str]) -> Case:
        """The inverse of ``arguments``."""
        size, in_flight, e, wq, aq, warmup_s, round_s, bytes_max, rounds, mode = arguments
        return cls(
            entry_bytes=int(size),
            in_flight=int(in_flight),
            ensemble=(int(e), int(wq), int(aq)),
            warmup_s=float(warmup_s),
            round_s=float(round_s),
            round_bytes_max=int(bytes_max),
            rounds=int(rounds),
            failover=mode == "failover",
        )

    def timeout_s(self) -> float:
        """When a driver that has not ended is given up: start, appends and reads, generously."""
        return 60.0 + 10.0 * (self.warmup_s + self.rounds * self.round_s)


_WORK = ((KIB, 2000), (KIB, 1), (64 * KIB, 200), (MIB, 16))
"""Entry size and number in flight. Large entries: 13 to 16 MiB in flight, enough for any system."""


def throughput_cases(*, quick: bool) -> list[Case]:
    """Appends and reads at E3 WQ3 AQ2."""
    return [
        Case(
            entry_bytes=entry_bytes,
            in_flight=in_flight,
            warmup_s=0.5 if quick else 1.5,
            round_s=1.0 if quick else 3.0,
            round_bytes_max=(128 if quick else 512) * MIB,
            rounds=1 if quick else 3,
        )
        for entry_bytes, in_flight in _WORK
    ]


def failover_case(*, quick: bool) -> Case:
    """A server of three is killed while a moderate load runs."""
    return Case(
        entry_bytes=KIB,
        in_flight=100,
        warmup_s=1.0,
        round_s=3.0,
        rounds=1 if quick else 3,
        failover=True,
    )
