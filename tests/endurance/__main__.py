"""``python -m tests.endurance --minutes 15``: a streaming query whose workers are killed, watched.

A query with a trigger of half a second writes to a stream on three bookies; every half minute one
of its Python workers is killed; a keeper cleans up. Exit code 1 if ledgers that are open or
unnamed, owners or nodes of ZooKeeper pile up, if any of them is left at the end, or if a number is
missing from the stream or in it twice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

from spark_ledger.local import LocalCluster
from spark_ledger.metadata.base import SizedStore
from spark_ledger.metadata.connect import open_store
from spark_ledger.stream.blocking import StreamConnection
from tests.endurance.judging import growth, leftovers, rows
from tests.endurance.keeping import keep, settle
from tests.endurance.killing import Driver
from tests.endurance.looking import Sample, look

STREAM = "numbers"
ROWS_PER_S = 100
LOOK_S = 5.0
START_S = 300.0
"""For Spark's start on a busy machine."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.endurance")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--kill-every", type=float, default=30.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=None, help="write the looks and verdict here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="endurance-") as directory:
        samples, wrong, starts = run(options, Path(directory))
    last = samples[-1]
    print(
        f"{last.commits} commits, {last.kills} workers killed, {starts} starts of the query; "
        f"{last.ledgers} ledgers, {last.other_nodes} other nodes"
    )
    for each in wrong:
        print(f"WRONG: {each}")
    if options.json is not None:
        figures = {"samples": [sample._asdict() for sample in samples], "wrong": wrong}
        options.json.write_text(json.dumps(figures, indent=1))
    return 1 if wrong else 0


def run(options: argparse.Namespace, directory: Path) -> tuple[list[Sample], list[str], int]:
    """All of it: the looks, the last one after the end; what is wrong; starts of the query."""
    with LocalCluster(bookies=3) as cluster:
        keep(cluster)
        arguments = (cluster.uri, STREAM, str(directory / "checkpoint"), str(ROWS_PER_S))
        driver = Driver(directory / "driver.log", *arguments)
        try:
            samples = asyncio.run(watch(cluster.uri, driver, options))
        finally:
            code = driver.stop()
        wrong = growth(samples)
        if code:
            wrong.append(f"the query ended with {code}: {(directory / 'driver.log').read_text()}")
        last = samples[-1]
        end = settle(cluster.uri, STREAM, seconds=last.seconds, kills=last.kills)
        samples.append(asyncio.run(end))
        print(samples[-1], flush=True)
        wrong += leftovers(samples[-1]) + rows(stored(cluster.uri))
    return samples, wrong, driver.starts


async def watch(uri: str, driver: Driver, options: argparse.Namespace) -> list[Sample]:
    """From the first commit on, look every few seconds, and kill a worker when it is time."""
    samples: list[Sample] = []
    draw, kills = random.Random(options.seed), 0
    kill_at = options.kill_every
    store = await open_store(uri)
    try:
        await first_commit(store)
        began = time.monotonic()
        while (seconds := time.monotonic() - began) < options.minutes * 60:
            driver.see_to_it()
            if seconds >= kill_at and driver.kill_a_worker(draw):
                kills, kill_at = kills + 1, seconds + options.kill_every
            samples.append(await look(store, STREAM, seconds, kills))
            print(samples[-1], flush=True)
            await asyncio.sleep(LOOK_S)
    finally:
        await store.close()
    return samples


async def first_commit(store: SizedStore) -> None:
    """Wait until the query has committed once: Spark takes its time to start."""
    async with asyncio.timeout(START_S):
        while not (await look(store, STREAM, 0.0, 0)).commits:
            await asyncio.sleep(1.0)


def stored(uri: str) -> list[int]:
    """The numbers in the stream."""
    with StreamConnection.connect(uri) as client:
        return [
            number
            for batch in client.stream(STREAM).read()
            for number in cast("list[int]", batch.column("value").to_pylist())
        ]


if __name__ == "__main__":
    sys.exit(main())
