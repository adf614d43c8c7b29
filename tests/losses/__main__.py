"""``python -m tests.losses --minutes 10``: five real bookies, load, and a stranger.

The stranger kills, pauses, stops, drains and wipes bookies at random, and brings them back or puts
new ones in their places. At the end every acknowledged entry must have WQ good copies in the racks
that the placement policy wants, counted on the disks themselves. Exit code 1 if anything is wrong.
The same seed draws the same acts; what they meet depends on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from spark_ledger.cli.safety import Standing, exit_status
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import LedgerError
from spark_ledger.local import LocalCluster
from spark_ledger.metadata.cluster import read_cluster, set_placement
from spark_ledger.types import BookieId, LedgerId, LedgerMetadata, PlacementPolicy
from tests.losses.disks import Count, count
from tests.losses.load import Load, Written
from tests.losses.reasons import reasons
from tests.losses.stranger import Stranger, look

BOOKIES: Final = 5
RACKS: Final = 3
MIN_RACKS: Final = 2
LOST_AFTER_S: Final = 4.0
OPEN_GRACE_S: Final = 5.0
"""Ledgers that idle writers leave open are closed so soon: until then no other disk is wiped."""
SETTLE_S: Final = 240.0
"""In which repair brings back all copies once the stranger has left. A look at which a bookie that
is registered did not answer in time counts for nothing: the machine is busy."""

SETTLE_S_MAX: Final = 1800.0

Noted = dict[LedgerId, tuple[LedgerMetadata, Written]]


@dataclass(slots=True)
class Verdict:
    """What a run came to."""

    acknowledged: int = 0
    ledgers: int = 0
    copies: int = 0
    settled_s: float = 0.0
    acts: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def line(self) -> str:
        """For people."""
        acts = ", ".join(f"{n} x {what}" for what, n in sorted(self.acts.items()))
        return (
            f"{self.acknowledged:,} entries of {self.ledgers:,} ledgers acknowledged; {acts}; "
            f"all copies there {self.settled_s:.0f} s later; {self.copies:,} copies counted on "
            f"disks; {len(self.faults)} faults"
        )


def run(
    seconds: float,
    seed: int,
    say: Callable[[str], None] = lambda _: None,
    directory: Path | None = None,
) -> Verdict:
    """One cluster, from its start to the count. ``directory``: its disks and logs stay there."""
    with LocalCluster(
        BOOKIES,
        directory,
        racks=RACKS,
        keeper=True,
        lost_bookie_delay_s=LOST_AFTER_S,
        open_ledger_grace_s=OPEN_GRACE_S,
    ) as cluster:
        verdict, cluster_id, noted = asyncio.run(_under_load(cluster, seconds, seed, say))
        if verdict.faults:
            return verdict
        for index in range(len(cluster.bookie_ids)):
            if cluster.is_bookie_running(index):
                cluster.kill_bookie(index)  # what counts is what a power cut would leave
        named = {b for metadata, _ in noted.values() for f in metadata.fragments for b in f.bookies}
        directories = {
            BookieId(name): cluster.bookie_directory(index)
            for index, name in enumerate(cluster.bookie_ids)
            if name in named
        }
        found: Count = count(directories, cluster_id, noted, MIN_RACKS)
        verdict.copies, verdict.faults = found.copies, found.faults
    return verdict


async def _under_load(
    cluster: LocalCluster, seconds: float, seed: int, say: Callable[[str], None]
) -> tuple[Verdict, str, Noted]:
    async with await LedgerClient.connect(cluster.uri) as client:
        await set_placement(client.store, PlacementPolicy(min_racks=MIN_RACKS))
        load, stop = Load(cluster.uri, seed), asyncio.Event()
        stranger = Stranger(cluster, client, seed, say)
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run(stop))
            group.create_task(stranger.run(stop))
            await asyncio.sleep(seconds)
            stop.set()
        verdict = Verdict(load.acknowledged, len(load.ledgers), acts=dict(stranger.done))
        verdict.faults = [*load.faults, *stranger.faults]
        say(f"the stranger has left; errors of clients: {dict(load.errors)}, {load.read} read")
        began = time.monotonic()
        standing = await _settle(client, load, say)
        verdict.settled_s = time.monotonic() - began
        if exit_status(standing):
            verdict.faults.append(f"not in order after {SETTLE_S:g} s: {standing}")
            verdict.faults += await reasons(client, load.ledgers)
        noted: Noted = {
            ledger_id: (await client.ledger_metadata(ledger_id), written)
            for ledger_id, written in load.ledgers.items()
        }
        return verdict, await read_cluster(client.store), noted


async def _settle(client: LedgerClient, load: Load, say: Callable[[str], None]) -> Standing:
    """Close what was left open, and wait until ``ledger cluster status`` has nothing to say."""
    began, waited_s = time.monotonic(), 0.0
    left = {each for each, written in load.ledgers.items() if not written.closed}
    while True:
        for ledger_id in sorted(left):
            password = load.ledgers[ledger_id].password
            try:
                await client.open_ledger(ledger_id, password=password, recover=True)
                left.discard(ledger_id)
            except LedgerError as error:
                say(f"ledger {ledger_id} is not recovered yet: {error}")
        looked_at = time.monotonic()
        standing = await look(client)
        await asyncio.sleep(2.0)
        if not any(standing.bookies.get(each, "down") != "down" for each in standing.silent):
            waited_s += time.monotonic() - looked_at
        is_late = waited_s > SETTLE_S or time.monotonic() - began > SETTLE_S_MAX
        if (not left and not exit_status(standing)) or is_late:
            return standing


def main() -> int:
    """Print what happened."""
    parser = argparse.ArgumentParser(prog="python -m tests.losses", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--quiet", action="store_true", help="only the last line")
    parser.add_argument("--keep", type=Path, default=None, help="an empty directory for the disks")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    say = (lambda _: None) if options.quiet else (lambda text: print(text, flush=True))
    verdict = run(options.minutes * 60, seed, say, options.keep)
    print(f"seed {seed}: {verdict.line()}")
    for fault in verdict.faults[:50]:
        print(f"  {fault}")
    return 1 if verdict.faults else 0


if __name__ == "__main__":
    sys.exit(main())
