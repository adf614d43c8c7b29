"""The raw benchmark: appends, reads and failover, of this system and its peers, case by case."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from benchmarks import raw_ledger, startup
from benchmarks.bare import rows as bare
from benchmarks.cases import Case, failover_case, throughput_cases
from benchmarks.paths import FREE_BYTES_MIN, free_bytes
from benchmarks.peers import bookkeeper, kafka
from benchmarks.rows import OURS, Row, System
from benchmarks.steps import Step
from benchmarks.table import size_text
from spark_ledger.errors import ConfigurationError


class _System(NamedTuple):
    """How one system measures the rows of a case."""

    name: System
    throughput_rows: Callable[[Case], Iterator[Row]]
    failover_row: Callable[[Case], Row]


_OURS = _System(OURS, raw_ledger.throughput_rows, raw_ledger.failover_row)
_PEERS = (
    _System("bookkeeper", bookkeeper.throughput_rows, bookkeeper.failover_row),
    _System("kafka", kafka.throughput_rows, kafka.failover_row),
)


def steps(*, quick: bool, peers: bool, limit: bool = False) -> Iterator[Step]:
    """The steps of the raw benchmark. Systems alternate within each case, so that a slow phase of
    the machine hits all of them."""
    systems = (_OURS, *_PEERS) if peers else (_OURS,)
    for case in throughput_cases(quick=quick):
        work = f"{size_text(case.entry_bytes)} entries, {case.in_flight} in flight"
        for system in systems:
            measure = partial(_with_space, system.throughput_rows, case)
            yield Step(f"{system.name}: {work}", measure)
        if limit:
            yield Step(f"bare gRPC: {work}", partial(bare.throughput_rows, case))
    yield from other_steps(quick=quick, peers=peers)


def other_steps(*, quick: bool, peers: bool) -> Iterator[Step]:
    """Those that are no cases of throughput: failover, import, planning."""
    for system in (_OURS, *_PEERS) if peers else (_OURS,):
        measure_gap = partial(_failover, system, failover_case(quick=quick))
        yield Step(f"{system.name}: failover", measure_gap)
    yield Step(f"{OURS}: import", _import)
    yield Step(f"{OURS}: planning {startup.COMMITS:,} commits", _plan)


def _failover(system: _System, case: Case) -> Iterator[Row]:
    yield system.failover_row(case)


def _import() -> Iterator[Row]:
    yield startup.import_row()


def _plan() -> Iterator[Row]:
    yield from startup.plan_rows()


def _with_space(run: Callable[[Case], Iterator[Row]], case: Case) -> Iterator[Row]:
    free = free_bytes()
    if free < FREE_BYTES_MIN:
        raise ConfigurationError(
            f"{free / 1e9:.0f} GB are free on this disk, and a case may write "
            f"{FREE_BYTES_MIN / 1e9:.0f} GB before its data are removed: make room, or use --quick"
        )
    return run(case)
