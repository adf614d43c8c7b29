"""Moves copies from full bookies to empty ones, for the command line."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import click

from spark_ledger.cli.show.output import print_json, print_table, progress, size_text

if TYPE_CHECKING:
    from spark_ledger.repair.rebalance import RebalanceConfig, Rebalanced
    from spark_ledger.types import BookieId

_STEPS: Final = 1000
"""Of the progress bar: what has to move is known only once all ledgers were looked at."""


def even_out(uri: str, config: RebalanceConfig) -> Rebalanced:
    """See ``repair.rebalance.Rebalance``, with a progress bar."""
    from spark_ledger.client.ledger_client import LedgerClient
    from spark_ledger.repair.rebalance import Rebalance

    with progress("moving copies", _STEPS) as advance:
        shown = 0

        def told(so_far: Rebalanced) -> None:
            nonlocal shown
            now = min(_STEPS, _STEPS * so_far.moved_bytes // max(1, so_far.excess_bytes))
            advance(now - shown)
            shown = now

        async def run() -> Rebalanced:
            async with await LedgerClient.connect(uri) as client:
                return await Rebalance(client, config, told=told).run()

        return asyncio.run(run())


def show(done: Rebalanced, *, dry_run: bool, as_json: bool) -> None:
    """How full bookies were and are, and what moved."""
    if as_json:
        print_json(_fields(done, dry_run=dry_run))
        return
    print_table(
        ("bookie", "held before#", "held after#", "used before#", "used after#"),
        (
            (
                bookie_id,
                size_text(before.held_bytes),
                size_text(done.after[bookie_id].held_bytes),
                f"{before.used:.1%}",
                f"{done.after[bookie_id].used:.1%}",
            )
            for bookie_id, before in done.before.items()
        ),
    )
    click.echo(_said(done, dry_run=dry_run))
    if done.moves and not dry_run:
        click.echo("The old copies leave the disks within a day, or with `ledger bookies collect`.")
    for ledger_id, reason in sorted(done.failed.items()):
        click.echo(f"ledger {ledger_id}: {reason}")


def _said(done: Rebalanced, *, dry_run: bool) -> str:
    would = "would move" if dry_run else "moved"
    if not done.moves and done.is_even:
        return f"even: all are near the mean of {done.mean:.1%}, nothing moves"
    text = f"{done.moves} copies with {size_text(done.moved_bytes)} {would}"
    if done.is_even:
        return f"{text}: all are near the mean of {done.mean:.1%}"
    return f"{text}: not even yet, the mean is {done.mean:.1%}"


def _fields(done: Rebalanced, *, dry_run: bool) -> dict[str, object]:
    def shares(bookie_id: BookieId) -> dict[str, object]:
        before, after = done.before[bookie_id], done.after[bookie_id]
        return {
            "capacity_bytes": before.capacity_bytes,
            "held_bytes_before": before.held_bytes,
            "held_bytes_after": after.held_bytes,
        }

    return {
        "dry_run": dry_run,
        "even": done.is_even,
        "mean": round(done.mean, 6),
        "moves": done.moves,
        "moved_bytes": done.moved_bytes,
        "bookies": {bookie_id: shares(bookie_id) for bookie_id in done.before},
        "failed": {str(ledger_id): reason for ledger_id, reason in sorted(done.failed.items())},
    }
