"""Command: ``python -m benchmarks.small_appends``: what a small append costs a blocking client.

A local cluster of three bookies; entries of 1 KiB, three copies each, some 2,000 in flight. Wall
time depends on the machine and on what else runs on it; the client's processor time does so less.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from benchmarks.cases import KIB
from spark_ledger import connect
from spark_ledger.client.blocking_writer import BlockingWriter
from spark_ledger.local import LocalCluster

_SECONDS = 3.0
_IN_FLIGHT = 2000
_BATCH = 500
_PAYLOAD = bytes(range(256)) * (KIB // 256)


def _singly(writer: BlockingWriter) -> Future[Any]:
    return writer.append_async(_PAYLOAD)


def _together(writer: BlockingWriter) -> Future[Any]:
    return writer.append_many_async([_PAYLOAD] * _BATCH)


def _append(
    writer: BlockingWriter, append: Callable[[BlockingWriter], Future[Any]], at_once: int
) -> None:
    """Append for a while with ``at_once`` entries in each call, and print what an entry took."""
    pending: deque[Future[Any]] = deque()
    calls, started, used = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - started < _SECONDS:
        for _ in range(_IN_FLIGHT // 2 // at_once):
            pending.append(append(writer))
            calls += 1
        while len(pending) * at_once > _IN_FLIGHT:
            pending.popleft().result()
    for future in pending:
        future.result()
    entries = calls * at_once
    seconds, used = time.perf_counter() - started, time.process_time() - used
    print(
        f"  {entries / seconds:9,.0f} entries/s, {1e6 * used / entries:5.1f} us of the client each"
    )


def main() -> None:
    """Print the cost with a future for each entry, and with one for a batch."""
    with LocalCluster(bookies=3) as cluster, connect(cluster.uri) as connection:
        for name, append, at_once in (
            ("append_async", _singly, 1),
            (f"append_many_async, {_BATCH} entries each", _together, _BATCH),
        ):
            print(name)
            for _ in range(3):
                with connection.create_ledger() as writer:
                    _append(writer, append, at_once)
                connection.delete_ledger(writer.ledger_id)


if __name__ == "__main__":
    main()
