"""The curves: append latency and rate against load, rate against entry size, against ledgers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial

from benchmarks import ledgers_in_turn, raw_ledger
from benchmarks.bare import rows as bare
from benchmarks.cases import KIB, MIB, Case
from benchmarks.peers import bookkeeper, kafka
from benchmarks.rows import OURS, Row, row_of_rounds
from benchmarks.steps import Step
from benchmarks.table import size_text
from spark_ledger.local import LocalCluster

IN_FLIGHT = (1, 10, 100, 500, 2000)
ENTRY_BYTES = (128, KIB, 8 * KIB, 64 * KIB, MIB)
LEDGERS = (1, 10, 100, 1000)

_BYTES_IN_FLIGHT = 16 * MIB
"""Of the curve over sizes, as far as 2,000 entries have so many."""

_Measure = Callable[[Case], Iterator[Row]]
_OURS: tuple[tuple[str, _Measure], ...] = ((OURS, raw_ledger.throughput_rows),)
_PEERS: tuple[tuple[str, _Measure], ...] = (
    ("bookkeeper", bookkeeper.throughput_rows),
    ("kafka", kafka.throughput_rows),
)
_BARE: tuple[tuple[str, _Measure], ...] = (("bare gRPC", bare.throughput_rows),)


def cases(*, quick: bool) -> list[Case]:
    """Every case once: 1 KiB by entries in flight, and as many as are good for each size."""
    by_load = [(KIB, in_flight) for in_flight in IN_FLIGHT]
    by_size = [(size, _in_flight(size)) for size in ENTRY_BYTES]
    return [
        Case(
            entry_bytes=entry_bytes,
            in_flight=in_flight,
            # A JVM's first seconds are not what it can do.
            warmup_s=0.5 if quick else 4.0,
            round_s=1.0 if quick else 2.0,
            round_bytes_max=(128 if quick else 384) * MIB,
            rounds=1 if quick else 3,
        )
        for entry_bytes, in_flight in dict.fromkeys(by_load + by_size)
    ]


def _in_flight(entry_bytes: int) -> int:
    """Entries of this size in flight, in the curve over sizes."""
    return min(2000, _BYTES_IN_FLIGHT // entry_bytes)


def steps(*, quick: bool, peers: bool, limit: bool) -> Iterator[Step]:
    """Systems alternate within each case, so that a slow phase of the machine hits all of them."""
    systems = _OURS + (_PEERS if peers else ()) + (_BARE if limit else ())
    for case in cases(quick=quick):
        work = f"{size_text(case.entry_bytes)} entries, {case.in_flight} in flight"
        for name, measure in systems:
            yield Step(f"{name}: {work}", partial(_rows, measure, case))
    seconds = 1.0 if quick else 3.0
    yield Step(f"{OURS}: {', '.join(map(str, LEDGERS))} ledgers", partial(_ledger_rows, seconds))


def _rows(measure: _Measure, case: Case) -> Iterator[Row]:
    """The rows of a case. What was read is of the curve over sizes only."""
    of_sizes = case.in_flight == _in_flight(case.entry_bytes)
    return (row for row in measure(case) if of_sizes or row.op == "append")


def _ledger_rows(seconds: float) -> Iterator[Row]:
    for ledgers in LEDGERS:
        with LocalCluster(bookies=ledgers_in_turn.BOOKIES) as cluster:
            in_turn = ledgers_in_turn.rounds(cluster, ledgers, ledgers_in_turn.IN_FLIGHT, seconds)
            found = [each.round for each in asyncio.run(in_turn)]
        yield row_of_rounds(
            found,
            bench="raw",
            system=OURS,
            entry_bytes=KIB,
            in_flight=ledgers_in_turn.IN_FLIGHT,
            ensemble=(3, 3, 2),
            ledgers=ledgers,
        )
