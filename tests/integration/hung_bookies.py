"""Measures a writer beside bookies that hang: ``python -m tests.integration.hung_bookies --help``.

A bookie hangs as a process that stands still (``stop``), because no sync of its disks ends
(``disk``), or because none of its ledger disk does (``ledgers``). A producer appends one entry
after the other; what counts is how long nothing is confirmed once the hang was found, and how often
the ensemble changes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import LedgerError
from spark_ledger.limits import KIB, MIB
from spark_ledger.limits.bookie import JOURNAL_STALLED_S, LEDGERS_STALLED_S
from spark_ledger.limits.client import ADD_TIMEOUT_S
from spark_ledger.local import LocalCluster, bookie
from spark_ledger.types import BookieInfo

DETECTED_S: Final = {
    "stop": ADD_TIMEOUT_S + 1.0,
    "disk": JOURNAL_STALLED_S + 1.0,
    "ledgers": LEDGERS_STALLED_S + 2.0,  # its write cache is full first
}
"""After so long a hang of each kind has been found: by silence, or because the bookie says it."""

_SITE: Final = Path(__file__).parent / "hanging_disk"


@dataclass(slots=True)
class Outcome:
    """What was measured. Times are seconds from the beginning of the hang."""

    acks: list[float] = field(default_factory=list)
    fragments: int = 1
    error: LedgerError | None = None
    hung: tuple[str, ...] = ()
    told: list[BookieInfo] = field(default_factory=list)
    """What the hung bookies were registered as when the hang had been found."""
    told_after: list[BookieInfo] = field(default_factory=list)
    """And some time after it was over."""

    def longest_gap_s(self, since: float, until: float) -> float:
        """The longest time without an acknowledgement in a part of the run."""
        times = [since, *(at for at in self.acks if since < at < until), until]
        return max(after - before for before, after in pairwise(times))


@contextmanager
def hanging_cluster(bookies: int) -> Iterator[tuple[LocalCluster, Path]]:
    """A cluster whose disks can hang, and the directory of the flags that make them.

    Its write caches are small, so that adds have to wait for a flush before long.
    """
    write = bookie.write_config

    def write_config(*arguments: Any, **named: Any) -> Path:
        config = write(*arguments, **named)
        large = f"write_cache_bytes = {96 * MIB}\n"
        text = config.read_text(encoding="utf-8")
        assert large in text
        config.write_text(text.replace(large, f"write_cache_bytes = {4 * MIB}\n"))
        return config

    with tempfile.TemporaryDirectory() as flags:
        before = os.environ.get("PYTHONPATH", "")
        os.environ |= {
            "PYTHONPATH": f"{_SITE}:{before or os.getcwd()}",
            "HANGING_DISK_FLAGS": flags,
        }
        try:
            with (
                patch.object(bookie, "write_config", write_config),
                LocalCluster(bookies=bookies) as cluster,
            ):
                yield cluster, Path(flags)
        finally:
            os.environ["PYTHONPATH"] = before
            del os.environ["HANGING_DISK_FLAGS"]


def hang(kind: str, pid: int, flags: Path, directory: Path) -> Callable[[], None]:
    """Make a bookie hang; what ends that. ``directory``: where its directories are."""
    if kind == "stop":
        os.kill(pid, signal.SIGSTOP)
        return lambda: os.kill(pid, signal.SIGCONT)
    flag = flags / str(pid)
    flag.write_text(f"{directory}/ledgers" if kind == "ledgers" else "", encoding="utf-8")
    return flag.unlink


async def measure(
    cluster: LocalCluster, flags: Path, kind: str, seconds: float, count: int
) -> Outcome:
    """Write while ``count`` bookies of the ensemble hang for so long."""
    client = await LedgerClient.connect(cluster.uri)
    writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    outcome = Outcome()
    started = 0.0
    payload = b"x" * (64 * KIB if kind == "ledgers" else 1000)

    async def load(until: float) -> None:
        while time.monotonic() < until and outcome.error is None:
            try:
                await writer.append(payload)
            except LedgerError as error:
                outcome.error = error
            outcome.acks.append(time.monotonic() - started)
            await asyncio.sleep(0.002)

    async def told() -> list[BookieInfo]:
        return [one for one in await client.list_bookies() if one.bookie_id in outcome.hung]

    await load(time.monotonic() + 0.5)
    ensemble = writer.metadata.last_fragment.bookies[1 : 1 + count] if count < 3 else ()
    outcome.hung = tuple(ensemble or writer.metadata.last_fragment.bookies)
    outcome.acks.clear()
    started = time.monotonic()
    ids = list(cluster.bookie_ids)
    ends = [
        hang(kind, cluster.bookie_pid(ids.index(one)), flags, cluster.directory / one)
        for one in outcome.hung
    ]
    loading = asyncio.create_task(load(started + seconds + 2.0))
    try:
        await asyncio.sleep(min(seconds, DETECTED_S[kind]))
        outcome.told = await told()
        await asyncio.sleep(started + seconds - time.monotonic())
    finally:
        for end in ends:
            end()
    await loading
    outcome.told_after = await told()
    outcome.fragments = len(writer.metadata.fragments)
    if outcome.error is None:
        await writer.close()
    await client.close()
    return outcome


def main() -> None:
    """Measure once, and print."""
    parser = argparse.ArgumentParser(description="Measure a writer beside bookies that hang.")
    parser.add_argument("kind", choices=sorted(DETECTED_S))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--bookies", type=int, default=3)
    parser.add_argument("--hung", type=int, default=1)
    options = parser.parse_args()
    with hanging_cluster(options.bookies) as (cluster, flags):
        outcome = asyncio.run(measure(cluster, flags, options.kind, options.seconds, options.hung))
    since = DETECTED_S[options.kind]
    print(
        f"{options.hung} of {options.bookies} bookies hung ({options.kind}) for "
        f"{options.seconds:g} s: {len(outcome.acks)} acknowledgements; longest gap "
        f"{outcome.longest_gap_s(0.0, since):.2f} s before and "
        f"{outcome.longest_gap_s(since, options.seconds):.2f} s after detection; "
        f"{outcome.fragments - 1} ensemble changes; "
        f"registered {[(str(one.state), one.reason) for one in outcome.told]}, then "
        f"{[(str(one.state), one.reason) for one in outcome.told_after]}; "
        f"error {outcome.error!r}"
    )


if __name__ == "__main__":
    main()
