"""``ledger keeper``: run the keeper, and see what it did and what waits for it."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING

import click

from spark_ledger.cli.arguments.amounts import DURATION_S, number_from, size_of
from spark_ledger.cli.arguments.settings import Settings, common_options
from spark_ledger.cli.audit import audit, audit_fields, audit_lines
from spark_ledger.cli.autorecovery import repair_config, repair_options
from spark_ledger.cli.show.output import age_text, print_json, print_table, size_text, time_text
from spark_ledger.cli.until_stopped import run_until_stopped, stopped_by_signals
from spark_ledger.limits.keeper import (
    AUDIT_S,
    DROPPED_GRACE_S,
    KEEPER_PASS_S,
    OPTIMIZE_BYTES_PER_S,
    OPTIMIZE_S,
    OWNER_GRACE_S,
    REPLACED_GRACE_S,
    UNNAMED_GRACE_S,
)
from spark_ledger.tasks import cancel

if TYPE_CHECKING:
    from spark_ledger.client.ledger_client import LedgerClient
    from spark_ledger.keeper.config import KeeperConfig
    from spark_ledger.keeper.decisions import Verdict
    from spark_ledger.keeper.keeper import Keeper
    from spark_ledger.keeper.nodes import AuditState, Elected, KeeperState, PackedNode
    from spark_ledger.keeper.optimizing import Packable
    from spark_ledger.repair.service import RepairConfig
    from spark_ledger.types import LedgerId


@click.group()
def group() -> None:
    """Run the keeper, which ends what dead writers leave, or see how it is."""


group.add_command(audit)


@group.command()
@click.option("--dry-run", is_flag=True, help="Print what is due now, do nothing, and end.")
@click.option(
    "--unless-elected",
    is_flag=True,
    help="End at once if another keeper is elected, instead of waiting for its end.",
)
@click.option("--until-input-ends", is_flag=True, help="Also end once standard input is closed.")
@click.option(
    "--owner-grace",
    type=number_from(0),
    default=OWNER_GRACE_S,
    show_default=True,
    metavar="SECONDS",
    help="A writer gone for so long has its open ledgers recovered.",
)
@click.option(
    "--unnamed-grace",
    type=number_from(0),
    default=UNNAMED_GRACE_S,
    show_default=True,
    metavar="SECONDS",
    help="A writer gone for so long has its ledgers deleted that no commit names: longer than "
    "your longest job.",
)
@click.option(
    "--dropped-grace",
    type=number_from(0),
    default=DROPPED_GRACE_S,
    show_default=True,
    metavar="SECONDS",
    help="Ledgers whose rows were dropped so long ago are deleted: longer than a batch that was "
    "planned before takes.",
)
@click.option(
    "--replaced-grace",
    type=number_from(0),
    default=REPLACED_GRACE_S,
    show_default=True,
    metavar="SECONDS",
    help="Ledgers that packs and merged manifests replaced so long ago are deleted: longer than "
    "from one backup of ZooKeeper to the next; 0: at once.",
)
@click.option(
    "--interval",
    type=number_from(0.1),
    default=KEEPER_PASS_S,
    show_default=True,
    metavar="SECONDS",
    help="Pause between two passes.",
)
@click.option(
    "--sink-records",
    type=DURATION_S,
    metavar="TIME",
    help="Remove records of sinks that have committed nothing for so long of their stream's time, "
    "such as 30d. Default: never.",
)
@click.option(
    "--autorecovery/--no-autorecovery",
    default=True,
    show_default=True,
    help="Also make the copies of lost bookies again.",
)
@repair_options
@click.option(
    "--audit-interval",
    type=number_from(0),
    default=AUDIT_S,
    show_default=True,
    metavar="SECONDS",
    help="From one audit to the next; 0: only when `ledger keeper audit` asks for one.",
)
@click.option(
    "--optimize-interval",
    type=number_from(0),
    default=OPTIMIZE_S,
    show_default=True,
    metavar="SECONDS",
    help="From one look for small commits to the next, in streams that were optimized before; "
    "0: never.",
)
@click.option(
    "--optimize-rate",
    type=size_of(1024),
    default=str(OPTIMIZE_BYTES_PER_S),
    metavar="SIZE",
    help="Bytes a second that packing small commits copies at most. "
    f"[default: {size_text(OPTIMIZE_BYTES_PER_S)}]",
)
@common_options
@click.pass_obj
def run(
    settings: Settings,
    dry_run: bool,
    unless_elected: bool,
    until_input_ends: bool,
    owner_grace: float,
    unnamed_grace: float,
    dropped_grace: float,
    replaced_grace: float,
    interval: float,
    sink_records: float | None,
    autorecovery: bool,
    lost_bookie_delay: float,
    open_ledger_grace: float,
    repair_rate: float,
    repair_source_rate: float,
    audit_interval: float,
    optimize_interval: float,
    optimize_rate: float,
) -> None:
    """Run as the keeper of the cluster until SIGTERM; wait while another one runs.

    Killing it anywhere loses nothing: the next one finds the same work.
    """
    from spark_ledger.keeper.config import KeeperConfig

    config = KeeperConfig(
        pass_s=interval,
        owner_grace_s=owner_grace,
        unnamed_grace_s=unnamed_grace,
        dropped_grace_s=dropped_grace,
        replaced_grace_s=replaced_grace,
        sink_records_s=sink_records or 0.0,
        audit_s=audit_interval,
        optimize_s=optimize_interval,
        optimize_bytes_per_s=optimize_rate,
        dry_run=dry_run,
    )
    uri = settings.uri()
    if dry_run:
        _print_plan(settings, *asyncio.run(_look(uri, config)))
        return
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    repair = repair_config(lost_bookie_delay, open_ledger_grace, repair_rate, repair_source_rate)
    asyncio.run(
        _serve(
            uri,
            config,
            repair if autorecovery else None,
            unless_elected=unless_elected,
            until_input_ends=until_input_ends,
        )
    )


async def _look(
    uri: str, config: KeeperConfig
) -> tuple[list[tuple[Verdict, LedgerId]], list[Packable]]:
    from spark_ledger.client.ledger_client import LedgerClient
    from spark_ledger.keeper.keeper import Keeper

    async with await LedgerClient.connect(uri) as client:
        keeper = Keeper(client, config)
        return await keeper.look(), [each async for each in keeper.packable()]


def _print_plan(
    settings: Settings, due: list[tuple[Verdict, LedgerId]], packable: list[Packable]
) -> None:
    """What one pass would do to ledgers, and which commits would be packed."""
    if settings.as_json:
        plan: list[dict[str, object]] = [
            {"ledger_id": ledger_id, "due": verdict.value} for verdict, ledger_id in due
        ]
        plan += [
            {"stream": name, "due": "pack", "first_commit": packed.first, "commits": packed.commits}
            for name, packed in packable
        ]
        print_json(plan)
        return
    print_table(("ledger#", "due"), ((ledger_id, verdict.value) for verdict, ledger_id in due))
    for name, packed in packable:
        last = packed.first + packed.commits - 1
        click.echo(
            f"stream {name}: commits {packed.first}..{last} are packed: "
            f"{packed.former_entries} small entries, {size_text(packed.size_bytes)}"
        )


async def _serve(
    uri: str,
    config: KeeperConfig,
    repair: RepairConfig | None,
    *,
    unless_elected: bool,
    until_input_ends: bool,
) -> None:
    from spark_ledger.client.ledger_client import LedgerClient
    from spark_ledger.keeper.keeper import Keeper

    stop = stopped_by_signals()
    if until_input_ends:  # nothing is ever written to it
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stop.set)
    async with await LedgerClient.connect(uri) as client:
        keeper = Keeper(client, config)
        if unless_elected and not await keeper.elect():
            return  # of two that look at the same time, too, one is elected and the other ends
        await run_until_stopped(_work(client, keeper, repair, stop), stop)


async def _work(
    client: LedgerClient, keeper: Keeper, repair: RepairConfig | None, stop: asyncio.Event
) -> None:
    """The keeper and, beside it, repair. If one ends by an error so do all, and this raises it: a
    keeper that repairs nothing would stay elected, and nobody would look for it; nor if it reaches
    no bookies."""
    from spark_ledger.keeper.reach import watch_reach
    from spark_ledger.repair.service import run_repair

    def is_elected() -> bool:
        return keeper.is_elected

    loop = asyncio.get_running_loop()
    keeping = loop.create_task(keeper.run(stop))
    beside = [loop.create_task(watch_reach(client.context, stop, is_elected))]
    if repair is not None:
        beside.append(loop.create_task(run_repair(client, repair, stop, is_elected)))
    try:
        await asyncio.wait({keeping, *beside}, return_when=asyncio.FIRST_COMPLETED)
        for each in beside:
            if each.done():
                each.result()
        await keeping
    finally:
        await cancel(keeping, *beside)


@group.command()
@common_options
@click.pass_obj
def status(settings: Settings) -> None:
    """Show who the keeper is, what was done, and what waits; exit status 1 if nobody is."""
    import msgspec

    from spark_ledger.keeper.nodes import Done, Found

    elected, state, audited, packed = asyncio.run(_status(settings.uri()))
    done, found = (state.done, state.found) if state is not None else (None, None)
    if settings.as_json:
        print_json(
            {
                "elected": None if elected is None else msgspec.to_builtins(elected),
                "passes": state.passes if state else 0,
                "last_pass_ms": (state.time_ms or None) if state else None,
                "done": msgspec.to_builtins(done or Done()),
                "found": msgspec.to_builtins(found or Found()),
                "gone_owners": state.gone_s if state else {},
                "last_error": state.last_error if state else "",
                "audit": audit_fields(audited),
                "packed": {
                    "packs": packed.packs,
                    "commits": packed.commits,
                    "copied_bytes": packed.copied_bytes,
                },
            }
        )
    else:
        who = f"process {elected.pid} on {elected.host}" if elected else "nobody"
        click.echo(f"keeper     {who}")
        if state is not None and done is not None and found is not None:
            last = f"{time_text(state.time_ms)}, {age_text(state.time_ms)} ago"
            click.echo(f"last pass  {last if state.time_ms else 'none yet'}")
            print_table(
                ("", "now#", "owner gone#", "done#"),
                (
                    ("open ledgers", found.open, found.open_of_the_dead, done.recovered),
                    ("unnamed ledgers", found.unnamed, found.unnamed_of_the_dead, done.deleted),
                    ("with a password", found.locked, "", ""),
                    ("not recovered yet", found.failing, "", ""),
                    ("ledgers of dropped rows", "", "", done.reclaimed),
                    ("deleted streams", "", "", done.streams_finished),
                    ("packs of small commits", "", "", packed.packs),
                ),
            )
            if state.last_error:
                click.echo(f"last error: {state.last_error}")
        for line in audit_lines(audited):
            click.echo(line)
    if elected is None:
        click.get_current_context().exit(1)


async def _status(
    uri: str,
) -> tuple[Elected | None, KeeperState | None, AuditState | None, PackedNode]:
    from spark_ledger.keeper.nodes import (
        PackedNode,
        read_audit,
        read_elected,
        read_packed,
        read_state,
    )
    from spark_ledger.metadata.connect import connected_store

    async with connected_store(uri) as store:
        state, audited = await read_state(store), await read_audit(store)
        elected, packed = await read_elected(store), await read_packed(store)
        return (
            elected,
            None if state is None else state.value,
            None if audited is None else audited.value,
            PackedNode() if packed is None else packed.value,
        )
