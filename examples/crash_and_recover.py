"""A writer is killed, another freezes: what was acknowledged stays, and the old writer is fenced.

    python examples/crash_and_recover.py                        # starts a cluster of its own
    python examples/crash_and_recover.py --metadata zk://host:2181/ledgers

The program starts itself again, with --write, as the writer process. It prints the id of each entry
after its acknowledgement; what it has printed is what it may rely on.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import spark_ledger
from spark_ledger.errors import FencedError
from spark_ledger.local import LocalCluster

ENTRIES = 200  # the writer has this many acknowledgements before it is killed or frozen


def write(uri: str) -> None:
    """The writer process: append until another client takes the ledger over."""
    with spark_ledger.connect(uri) as client:
        writer = client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        print(writer.ledger_id, flush=True)
        try:
            for number in itertools.count():
                print(writer.append(b"entry %d" % number), flush=True)
        except FencedError as error:
            print(f"FencedError: {error}", flush=True)


@contextmanager
def writer_process(uri: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A writer that has appended ENTRIES entries and goes on, and its ledger."""
    command = [sys.executable, __file__, "--metadata", uri, "--write"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ledger_id, *_ = [int(process.stdout.readline()) for _ in range(1 + ENTRIES)]
        yield process, ledger_id


def recover(uri: str, ledger_id: int) -> int:
    """Fence the ledger, close it at its end, and check every entry. Returns how many there are."""
    with spark_ledger.connect(uri) as client:
        reader = client.open_ledger(ledger_id, recover=True)
        entries = list(reader.read(0, reader.last_add_confirmed))
    assert [e.payload for e in entries] == [b"entry %d" % e.entry_id for e in entries]
    return len(entries)


def run(uri: str) -> None:
    with writer_process(uri) as (process, ledger_id):
        process.kill()  # in the middle of an append
        acknowledged = ENTRIES + len(process.communicate()[0].splitlines())
    entries = recover(uri, ledger_id)
    print(f"ledger {ledger_id}: killed after {acknowledged} acknowledgements, {entries} entries")
    assert acknowledged <= entries <= acknowledged + 1, "at most one append was in flight"

    with writer_process(uri) as (process, ledger_id):
        process.send_signal(signal.SIGSTOP)  # a long pause; others take it for dead
        entries = recover(uri, ledger_id)
        process.send_signal(signal.SIGCONT)  # it does not know that it was fenced, and goes on
        *late, last_words = process.communicate()[0].splitlines()
    assert ENTRIES + len(late) <= entries, "no append was acknowledged after recovery"
    print(f"ledger {ledger_id}: recovered with {entries} entries; then its writer got {last_words}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--metadata", help="URI of a running cluster; without it, one is started")
    parser.add_argument("--write", action="store_true", help="be the writer process")
    arguments = parser.parse_args()
    if arguments.metadata:
        (write if arguments.write else run)(arguments.metadata)
        return
    with LocalCluster(bookies=3) as cluster:
        run(cluster.uri)


if __name__ == "__main__":
    main()
