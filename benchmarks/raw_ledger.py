"""The raw benchmark of this system: a local cluster for each case, and a driver process."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from benchmarks.cases import Case
from benchmarks.drivers import rounds_of, run_driver
from benchmarks.rows import OURS, READ, READ_BATCHES, Round, Row, row_of_rounds
from spark_ledger.local import LocalCluster


def throughput_rows(case: Case) -> Iterator[Row]:
    """The append row of a case and its two rows of reads, on a cluster of its own."""
    with LocalCluster(bookies=max(3, case.ensemble[0])) as cluster:
        argv = [sys.executable, "-m", "benchmarks.ledger_driver", cluster.uri, *case.arguments()]
        rounds = run_driver(cluster.processes, "driver", argv, timeout_s=case.timeout_s())
    for op in (*case.ops, READ_BATCHES) if READ in case.ops else case.ops:
        yield row_of_rounds(
            rounds_of(rounds, op),
            bench="raw",
            system=OURS,
            entry_bytes=case.entry_bytes,
            in_flight=case.in_flight if op == "append" else None,
            ensemble=case.ensemble,
        )


def failover_row(case: Case) -> Row:
    """The longest time without an acknowledgement while a bookie of the ensemble is killed.

    There is one spare bookie. A killed bookie's connection is reset at once, so the gap is that of
    the ensemble change alone, without a timeout.
    """
    rounds: list[Round] = []
    with LocalCluster(bookies=case.ensemble[0] + 1) as cluster:
        for number in range(case.rounds):
            killed: list[int] = []

            def kill(bookies: list[str], killed: list[int] = killed) -> None:
                killed.append(cluster.bookie_ids.index(bookies[0]))
                cluster.kill_bookie(killed[0])

            rounds += run_driver(
                cluster.processes,
                f"driver-{number}",
                [sys.executable, "-m", "benchmarks.ledger_driver", cluster.uri, *case.arguments()],
                timeout_s=case.timeout_s(),
                on_writing=kill,
            )
            for index in killed:
                cluster.start_bookie(index)
    return row_of_rounds(
        rounds,
        bench="raw",
        system=OURS,
        entry_bytes=case.entry_bytes,
        in_flight=case.in_flight,
        ensemble=case.ensemble,
    )
