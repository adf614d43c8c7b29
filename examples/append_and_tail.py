"""One service appends to a ledger, another follows it: how soon is an entry seen?

    python examples/append_and_tail.py                       # starts a cluster of its own
    python examples/append_and_tail.py --metadata zk://host:2181/ledgers --entries 500

Two threads with a connection each stand for two services. The writer puts the time into each entry.
The follower learns of new entries by long poll and subtracts. Closing the ledger ends the program.
"""

from __future__ import annotations

import argparse
import statistics
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import spark_ledger
from spark_ledger.local import LocalCluster

STAMP = struct.Struct(">d")


def follow(uri: str, ledger_id: int, delays_ms: list[float]) -> None:
    """Note the age of every entry when it is seen, until the ledger is closed."""
    with spark_ledger.connect(uri) as client:
        for entry in client.open_ledger(ledger_id).tail(start=0):
            (sent_at,) = STAMP.unpack_from(entry.payload)
            delays_ms.append((time.monotonic() - sent_at) * 1e3)


def run(uri: str, entries: int, per_second: float) -> list[float]:
    """Append at a steady rate while another connection follows; the delays it saw."""
    delays_ms: list[float] = []
    with spark_ledger.connect(uri) as client:
        with client.create_ledger(custom_metadata={"app": "append_and_tail"}) as writer:
            follower = threading.Thread(target=follow, args=(uri, writer.ledger_id, delays_ms))
            follower.start()
            for _ in range(entries):
                writer.append(STAMP.pack(time.monotonic()) + b"a small message")
                time.sleep(1 / per_second)
        follower.join()  # the ledger is closed now, and its end is final
        print(f"ledger {writer.ledger_id}: {writer.last_add_confirmed + 1} entries appended")
    return delays_ms


@contextmanager
def cluster_of(uri: str | None) -> Iterator[str]:
    """The cluster that was named, or one that is started here and ends with the program."""
    if uri is not None:
        yield uri
        return
    with LocalCluster(bookies=3) as cluster:
        yield cluster.uri


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--metadata", help="URI of a running cluster; without it, one is started")
    parser.add_argument("--entries", type=int, default=200)
    parser.add_argument("--per-second", type=float, default=100.0)
    arguments = parser.parse_args()
    with cluster_of(arguments.metadata) as uri:
        delays_ms = run(uri, arguments.entries, arguments.per_second)
    middle, last = statistics.median(delays_ms), max(delays_ms)
    print(f"{len(delays_ms)} entries seen; median delay {middle:.1f} ms, longest {last:.1f} ms")
    return 0 if len(delays_ms) == arguments.entries else 1


if __name__ == "__main__":
    sys.exit(main())
