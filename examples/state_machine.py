"""A replicated state machine: its active is killed, the next one frozen, and no put is lost.

    python -m examples.state_machine                        # starts a cluster of its own
    python -m examples.state_machine --metadata zk://host:2181/ledgers

The program starts itself again, with --member NAME, as members of the key-value store in
key_value.py. A member prints each key when its put returns; what it has printed has to be there.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import subprocess
import sys

import spark_ledger
from examples.key_value import Member
from spark_ledger.errors import ConflictError, FencedError
from spark_ledger.local import LocalCluster


def serve(uri: str, name: str) -> None:
    """Be a member: follow, take over, put until fenced, follow again."""
    numbers = itertools.count()
    with spark_ledger.connect(uri) as client:
        member = Member(client)
        while True:
            print("follows", flush=True)
            member.follow()
            try:
                member.take_over()
                for number in numbers:
                    member.put(f"{name}-{number}", number)
                    print(f"{name}-{number}", flush=True)
            except (FencedError, ConflictError) as error:
                print(f"{type(error).__name__}: {error}", flush=True)


def member(uri: str, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "examples.state_machine", "--metadata", uri, "--member", name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def read_until(process: subprocess.Popen[str], last: str) -> set[str]:
    """The keys that a member prints up to a line that begins so."""
    keys: set[str] = set()
    for line in process.stdout or ():
        keys.add(line.strip())
        if line.startswith(last):
            return keys
    raise AssertionError(f"the member ended without {last}")


def run(uri: str) -> None:
    with member(uri, "a") as active:
        kept = read_until(active, "a-100")
        with member(uri, "b") as standby:
            read_until(standby, "follows")
            active.kill()  # in the middle of a put; the standby sees that nobody writes
            kept |= set(active.communicate()[0].split())
            kept |= read_until(standby, "b-100")
            standby.send_signal(signal.SIGSTOP)  # a long pause; others take it for dead
            with spark_ledger.connect(uri) as client:
                third = Member(client)
                third.follow()
                third.take_over()
                standby.send_signal(signal.SIGCONT)  # it does not know, and goes on
                kept |= read_until(standby, "FencedError")
                standby.kill()
            keys = {key for key in kept if key[:2] in ("a-", "b-")}
            lost = keys - third.state.keys()
    assert not lost, f"puts that returned are gone: {lost}"
    print(f"{len(keys)} puts returned, {len(lost)} lost, in {third.last['epoch']} epochs")
    print("the active that was frozen got FencedError when it went on")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--metadata", help="URI of a running cluster; without it, one is started")
    parser.add_argument("--member", metavar="NAME", help="be a member of this name")
    arguments = parser.parse_args()
    if arguments.metadata and arguments.member:
        serve(arguments.metadata, arguments.member)
    elif arguments.metadata:
        run(arguments.metadata)
    else:
        with LocalCluster(bookies=3) as cluster:
            run(cluster.uri)


if __name__ == "__main__":
    main()
