"""A workload client: one process with several roles, controlled by signals.

SIGTERM: finish the operations in flight, close ledgers, exit. SIGUSR1: recover every open ledger
now. SIGUSR2: have the ZooKeeper session expired. It always ends when its cluster's supervisor does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from tests.chaos import ledger_roles, stream_roles, wall_clock
from tests.chaos.recorder import Recorder
from tests.chaos.session import Session, connected

ROLES = ("write", "read", "recover", "delete", "commit", "shared", "follow", "read-stream")


def roles(session: Session, names: list[str]) -> list[Coroutine[Any, Any, None]]:
    """What this process does; a role may be given several times."""
    made: list[Coroutine[Any, Any, None]] = [session.keep_list()]
    for index, name in enumerate(names):
        match name:
            case "write":
                made.append(ledger_roles.write(session, index))
            case "read":
                made.append(ledger_roles.read(session, index))
            case "recover":
                made.append(ledger_roles.recover(session))
            case "delete":
                made.append(ledger_roles.delete(session))
            case "commit":
                made.append(stream_roles.commit(session, session.name))
            case "shared":
                made.append(stream_roles.commit(session, stream_roles.SHARED_SINK))
            case "follow":
                made.append(stream_roles.follow(session))
            case "read-stream":
                made.append(stream_roles.read_all(session))
            case other:
                raise ValueError(f"no role {other!r}: one of {', '.join(ROLES)}")
    return made


async def run(options: argparse.Namespace) -> None:
    """Connect, play the roles until told to stop, leave."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    for early in (signal.SIGUSR1, signal.SIGUSR2):
        loop.add_signal_handler(early, lambda: None)  # there is nothing to control yet
    recorder = Recorder(options.history, options.number)  # tells the stage that signals are handled
    async with connected(options.metadata, json.loads(options.bookies)) as client:
        session = Session(
            name=options.name,
            client=client,
            recorder=recorder,
            rng=random.Random(options.seed),
            appends_per_s=options.appends_per_s,
            stopping=stopping,
        )
        expiries: set[asyncio.Future[None]] = set()

        def expire() -> None:
            expiry = asyncio.ensure_future(_expire(session))
            expiries.add(expiry)
            expiry.add_done_callback(expiries.discard)

        loop.add_signal_handler(signal.SIGUSR1, session.recover_all.set)
        loop.add_signal_handler(signal.SIGUSR2, expire)
        async with asyncio.TaskGroup() as group:
            for role in roles(session, options.role):
                group.create_task(role)
    recorder.close()


async def _expire(session: Session) -> None:
    try:
        await asyncio.to_thread(session.expire_session)
    except Exception as error:  # noqa: BLE001 - ZooKeeper is away: then there is nothing to expire
        print(f"session not expired: {error!r}", file=sys.stderr)


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--metadata", required=True)
    parser.add_argument("--bookies", required=True, help="JSON: bookie id to host:port")
    parser.add_argument("--history", type=Path, required=True)
    parser.add_argument("--appends-per-s", type=float, default=200.0)
    parser.add_argument("--role", action="append", choices=ROLES, default=[])
    options = parser.parse_args()
    wall_clock.install()
    asyncio.run(run(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
