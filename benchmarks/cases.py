"""The raw cases: entry sizes, entries in flight, duration. The same for every system."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from benchmarks.rows import READ

KIB = 1 << 10
MIB = 1 << 20


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A closed loop with ``in_flight`` entries in flight: each confirmed entry is followed by a new
    one.

    Each round writes a new ledger (or topic) and then reads it back completely. A round ends after
    ``round_s`` seconds or ``round_bytes_max`` bytes of payload, whichever comes first, because
    replicated data fill a disk quickly. ``failover`` measures the gap around a kill instead.
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
        """What a peer's driver measures. With one entry in flight there is too little to read."""
        return ("append", READ) if self.in_flight > 1 else ("append",)

    def arguments(self) -> list[str]:
        """As arguments of a driver program, in any language."""
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
        """Seconds after which a driver is given up: start, appends and reads, with a wide
        margin."""
        return 60.0 + 10.0 * (self.warmup_s + self.rounds * self.round_s)


_WORK = ((KIB, 2000), (KIB, 1), (64 * KIB, 200), (MIB, 16))
"""Cases of appends and reads by entry size and entries in flight. Large entries have 13 to 16 MiB
in flight, enough for any system."""


def throughput_cases(*, quick: bool) -> list[Case]:
    """All cases of appends and reads, at E3 WQ3 AQ2."""
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
    """One of three servers is killed under a moderate load."""
    return Case(
        entry_bytes=KIB,
        in_flight=100,
        warmup_s=1.0,
        round_s=3.0,
        rounds=1 if quick else 3,
        failover=True,
    )
