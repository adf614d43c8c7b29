"""``ledger autorecovery``: run repair, and see how far it is."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from typing import TYPE_CHECKING

import click

from spark_ledger.cli.arguments.amounts import DURATION_S
from spark_ledger.cli.arguments.repair import (
    LOST_BOOKIE_DELAY,
    rate_option,
    source_rate_option,
)
from spark_ledger.cli.arguments.settings import Command, Settings, common_options
from spark_ledger.cli.show.output import age_text, print_json, print_table, size_text
from spark_ledger.cli.until_stopped import run_until_stopped, stopped_by_signals
from spark_ledger.limits.repair import OPEN_LEDGER_GRACE_S

if TYPE_CHECKING:
    from spark_ledger.repair.nodes import CheckState
    from spark_ledger.repair.service import RepairConfig
    from spark_ledger.repair.status import RepairStatus


def repair_options(command: Command) -> Command:
    """How long a lost bookie is waited for, and how fast its copies are made again."""
    for option in (
        rate_option("--repair-rate"),
        source_rate_option("--repair-source-rate"),
        click.option(
            "--open-ledger-grace",
            type=DURATION_S,
            default=f"{OPEN_LEDGER_GRACE_S:g}s",
            show_default="10m",
            metavar="TIME",
            help="An open ledger whose writer adds nothing is recovered so long after a bookie of "
            "it was lost.",
        ),
        LOST_BOOKIE_DELAY,
    ):
        command = option(command)
    return command


def repair_config(
    lost_bookie_delay: float,
    open_ledger_grace: float,
    repair_rate: float,
    repair_source_rate: float,
) -> RepairConfig:
    """What the options say."""
    from spark_ledger.repair.auditor import AuditorConfig
    from spark_ledger.repair.service import RepairConfig
    from spark_ledger.repair.worker import WorkerConfig

    return RepairConfig(
        AuditorConfig(lost_bookie_delay_s=lost_bookie_delay),
        WorkerConfig(
            bytes_per_s=repair_rate,
            source_bytes_per_s=repair_source_rate,
            open_grace_s=open_ledger_grace,
        ),
    )


@click.group()
def group() -> None:
    """Make the copies of lost bookies again, or see how far that is."""


@group.command()
@repair_options
@common_options
@click.pass_obj
def run(
    settings: Settings,
    lost_bookie_delay: float,
    open_ledger_grace: float,
    repair_rate: float,
    repair_source_rate: float,
) -> None:
    """Repair until SIGTERM, as one more worker beside the one of the cluster's keeper.

    Killing it anywhere loses nothing: the next one finds the same marks.
    """
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    config = repair_config(lost_bookie_delay, open_ledger_grace, repair_rate, repair_source_rate)
    asyncio.run(_serve(settings.uri(), config))


async def _serve(uri: str, config: RepairConfig) -> None:
    from spark_ledger.client.ledger_client import LedgerClient
    from spark_ledger.repair.service import run_repair

    stop = stopped_by_signals()
    async with await LedgerClient.connect(uri) as client:
        await run_until_stopped(run_repair(client, config, stop), stop)


@group.command()
@common_options
@click.pass_obj
def status(settings: Settings) -> None:
    """Show what lacks copies, how fast they are made, and what fails and why.

    Exit status 1 while a ledger lacks copies, or too many bookies are gone for repair.
    """
    found = asyncio.run(_look(settings.uri()))
    if settings.as_json:
        print_json(_fields(found))
    else:
        _print(found)
    if found.marked or found.audit.stopped:
        click.get_current_context().exit(1)


async def _look(uri: str) -> RepairStatus:
    from spark_ledger.metadata.connect import connected_store
    from spark_ledger.repair.status import look

    async with connected_store(uri) as store:
        return await look(store)


def _fields(found: RepairStatus) -> dict[str, object]:
    return {
        "last_look_ms": found.audit.time_ms or None,
        "gone_bookies": found.audit.gone_s,
        "leaving_bookies": list(found.leaving),
        "stopped": found.audit.stopped,
        "marked_ledgers": sum(found.marked.values()),
        "marked_by_copies_left": {str(copies): n for copies, n in found.marked.items()},
        "bytes_left": found.bytes_left,
        "bytes_left_of_ledgers": found.measured,
        "working": found.working,
        "check": {
            "begun_ms": found.check.begun_ms or None,
            "last_ended_ms": found.check.ended_ms or None,
            "ledgers": found.check.ledgers,
            "with_holes": found.check.with_holes,
        },
        "bytes_per_s": found.rate,
        "failing_ledgers": found.failing,
        "failed": [
            {
                "ledger_id": ledger_id,
                "tries": node.tries,
                "again_ms": node.again_ms or None,
                "reason": node.reason,
            }
            for ledger_id, node in found.failed
        ],
        "done": {
            "ledgers": found.done.ledgers,
            "entries": found.done.copied_entries,
            "bytes": found.done.copied_bytes,
        },
    }


def _print(found: RepairStatus) -> None:
    audit, done = found.audit, found.done
    looked = f"{age_text(audit.time_ms)} ago" if audit.time_ms else "never: no keeper is at work"
    gone = ", ".join(f"{name} for {seconds:.0f} s" for name, seconds in audit.gone_s.items())
    click.echo(f"last look     {looked}")
    click.echo(f"gone bookies  {gone or 'none'}")
    if found.leaving:
        click.echo(f"leaving       {', '.join(found.leaving)}")
    count = sum(found.marked.values())
    of = "" if found.measured == count else f" in the first {found.measured} of them"
    left = f", about {size_text(found.bytes_left)} to copy{of}" if count else ""
    click.echo(f"lack copies   {_many(count, 'ledger')}{left}")
    for copies, number in found.marked.items():
        many = "3 or more copies" if copies == 3 else _many(copies, "copy", "copies")
        click.echo(f"              {number} with {many} left")
    click.echo(f"at work on    {_many(found.working, 'ledger')}, {size_text(found.rate)} a second")
    click.echo(
        f"done          {_many(done.ledgers, 'ledger')}, "
        f"{_many(done.copied_entries, 'entry', 'entries')}, {size_text(done.copied_bytes)}"
    )
    click.echo(f"check         {_check_text(found.check)}")
    if audit.stopped:
        click.echo(f"stopped: {audit.stopped}")
    if found.failing:
        click.echo(f"\n{_many(found.failing, 'ledger')} failed at the last try:")
        print_table(
            ("ledger#", "tries#", "again", "why..."),
            (
                (ledger_id, node.tries, _again_text(node.again_ms), node.reason)
                for ledger_id, node in found.failed
            ),
        )


def _again_text(time_ms: int) -> str:
    """In how long a ledger is tried again, at the latest."""
    left_s = round(time_ms / 1e3 - time.time())
    return f"in {left_s} s" if left_s > 0 else "now"


def _many(count: int, one: str, more: str = "") -> str:
    return f"{count} {one if count == 1 else more or one + 's'}"


def _check_text(check: CheckState) -> str:
    found = f"{_many(check.ledgers, 'ledger')} asked for, {check.with_holes} with holes"
    if check.begun_ms:
        return f"under way since {age_text(check.begun_ms)}: {found}"
    if not check.ledgers:
        return "none yet"
    return f"ended {age_text(check.ended_ms)} ago: {found}"
