"""``ledger bookies``: the bookies of a cluster."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import click

from spark_ledger.cli.arguments.amounts import DURATION_S, count_from, number_from
from spark_ledger.cli.arguments.repair import rate_option, source_rate_option
from spark_ledger.cli.arguments.settings import Settings, common_options
from spark_ledger.cli.show.output import age_text, print_json, print_table, size_text
from spark_ledger.limits.repair import REBALANCE_TOLERANCE

if TYPE_CHECKING:
    from spark_ledger.cli.inspection import BookieRow
    from spark_ledger.metadata.collection import PassReport
    from spark_ledger.repair.decommission import Named
    from spark_ledger.types import BookieInfo


_OPEN_GRACE: Final = click.option(
    "--open-ledger-grace",
    type=DURATION_S,
    default="1m",
    show_default=True,
    metavar="TIME",
    help="Open ledgers that still name it after so long are recovered: their writers add nothing.",
)


@click.group()
def group() -> None:
    """List bookies; take one out, empty one, even them out, have them free space."""


@group.command("list")
@common_options
@click.pass_obj
def list_bookies(settings: Settings) -> None:
    """List all bookies of the cluster; one that is not running is shown as down."""
    from spark_ledger.cli.inspection import cluster_bookies

    rows = cluster_bookies(settings.uri())
    if settings.as_json:
        print_json([_fields(row) for row in rows])
        return
    print_table(
        (
            "bookie",
            "state",
            "address",
            "rack",
            "free#",
            "reclaimable#",
            "admin",
            "collected",
            "why...",
        ),
        (_cells(row) for row in rows),
    )


@group.command()
@click.option("--bookie", "bookies", multiple=True, metavar="ID", help="Only this one; repeatable.")
@click.option("--dry-run", is_flag=True, help="Count what would go, and delete nothing.")
@click.option(
    "--share",
    type=number_from(0, 1, above=True),
    metavar="SHARE",
    help="How much of what a bookie holds may go in this pass; 1: all of it.",
)
@click.option(
    "--accept-restored",
    is_flag=True,
    help="After ZooKeeper was restored from a backup: what it does not name now may go for good. "
    "Needs --bookie.",
)
@click.option(
    "--give-back",
    is_flag=True,
    help="Later: copies that the restored metadata name on other bookies may go too. "
    "Needs --bookie.",
)
@click.option(
    "--timeout",
    type=number_from(0),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Wait so long for the bookies; they go on afterwards.",
)
@common_options
@click.pass_obj
def collect(
    settings: Settings,
    bookies: tuple[str, ...],
    dry_run: bool,
    share: float | None,
    accept_restored: bool,
    give_back: bool,
    timeout: float,
) -> None:
    """Have bookies free the space of deleted ledgers now, and say how that went.

    They do so by themselves from time to time. Exit status 1 if one of them did not finish.
    """
    from spark_ledger.cli.collecting import Wanted
    from spark_ledger.cli.collecting import collect as order

    if accept_restored and not bookies:
        raise click.UsageError("--accept-restored needs --bookie: name each bookie that is meant")
    if give_back and (accept_restored or not bookies):
        raise click.UsageError(
            "--give-back needs --bookie, and a command of its own: accept what was restored, look "
            "with `ledger cluster usage --verify` whether copies are missing, then give back"
        )
    wanted = Wanted(bookies, timeout, dry_run, share, accept_restored, give_back)
    rows = order(settings.uri(), wanted)
    if settings.as_json:
        print_json(
            [{"bookie_id": bookie_id, "collection": _report(report)} for bookie_id, report in rows]
        )
    else:
        print_table(
            ("bookie", "outcome", "ledgers#", "deleted before#", "collected#", "bytes#", "why..."),
            (_outcome(bookie_id, report) for bookie_id, report in rows),
        )
    if any(report is None or report.aborted for _, report in rows):
        sys.exit(1)


@group.command()
@click.argument("bookie_id")
@click.option("--cancel", is_flag=True, help="Let it stay: it takes new entries again.")
@_OPEN_GRACE
@rate_option("--repair-rate")
@common_options
@click.pass_obj
def decommission(
    settings: Settings, bookie_id: str, cancel: bool, open_ledger_grace: float, repair_rate: float
) -> None:
    """Take a bookie out of the cluster, running or not: copy what it holds to others, see that
    nothing names it any more, and remove its cookie.

    May be stopped at any time: begun again, it goes on. Stop the bookie afterwards.
    """
    from spark_ledger.cli.leaving import let_stay, take_out

    uri = settings.uri()
    if cancel:
        stays = let_stay(uri, bookie_id)
        if settings.as_json:
            print_json({"bookie_id": bookie_id, "cancelled": stays})
        else:
            click.echo(f"{bookie_id} stays" if stays else f"{bookie_id} was not to leave")
        return
    left = take_out(
        uri,
        bookie_id,
        open_grace_s=open_ledger_grace,
        bytes_per_s=repair_rate,
        told=lambda left: click.echo(_still(bookie_id, left, f"{left.ledgers} ledgers"), err=True),
    )
    if settings.as_json:
        print_json({"bookie_id": bookie_id, "decommissioned": True, "runs": left.runs})
    else:
        click.echo(f"{bookie_id} is out of the cluster" + "; stop it now" * left.runs)


@group.command()
@click.argument("bookie_id")
@click.option("--undo", is_flag=True, help="Let it take new entries again; what was copied stays.")
@_OPEN_GRACE
@rate_option("--repair-rate")
@common_options
@click.pass_obj
def drain(
    settings: Settings, bookie_id: str, undo: bool, open_ledger_grace: float, repair_rate: float
) -> None:
    """Empty a bookie, for instance to exchange its disks: no new entries, and what it holds is
    copied to others. It stays in the cluster, read-only, until --undo.

    May be stopped at any time: begun again, it goes on.
    """
    from spark_ledger.cli.leaving import empty, let_stay

    uri = settings.uri()
    if undo:
        stays = let_stay(uri, bookie_id)
        if settings.as_json:
            print_json({"bookie_id": bookie_id, "undone": stays})
        else:
            said = "takes new entries again" if stays else "was not being drained"
            click.echo(f"{bookie_id} {said}")
        return
    empty(
        uri,
        bookie_id,
        open_grace_s=open_ledger_grace,
        bytes_per_s=repair_rate,
        told=lambda left: click.echo(
            _still(bookie_id, left, f"{left.ledgers} ledgers with {size_text(left.size_bytes)}"),
            err=True,
        ),
    )
    if settings.as_json:
        print_json({"bookie_id": bookie_id, "drained": True})
    else:
        click.echo(
            f"{bookie_id} is empty and read-only; ledger bookies drain {bookie_id} --undo ends that"
        )


@group.command()
@click.option("--dry-run", is_flag=True, help="Say what would move, and move nothing.")
@rate_option("--rate")
@source_rate_option("--source-rate")
@click.option(
    "--max-moves", type=count_from(1), metavar="COUNT", help="Move so many copies at most."
)
@click.option(
    "--tolerance",
    type=number_from(0.01, 1),
    default=REBALANCE_TOLERANCE,
    show_default=True,
    metavar="SHARE",
    help="How far from the mean a bookie's used share may stay, in parts of the mean.",
)
@common_options
@click.pass_obj
def rebalance(
    settings: Settings,
    dry_run: bool,
    rate: float,
    source_rate: float,
    max_moves: int | None,
    tolerance: float,
) -> None:
    """Move copies of closed ledgers from the fullest bookies to the emptiest, for instance to one
    that is new. Each copy stays named until the new one is synced; racks stay as they are. The
    bytes of what moved leave the old disks within a day, or with `ledger bookies collect`.

    May be stopped at any time: begun again, it goes on. Exit status 1 if bookies are not even then.
    """
    from spark_ledger.cli.rebalancing import even_out, show
    from spark_ledger.repair.rebalance import RebalanceConfig

    config = RebalanceConfig(
        tolerance=tolerance,
        moves_max=max_moves,
        bytes_per_s=rate,
        source_bytes_per_s=source_rate,
        dry_run=dry_run,
    )
    done = even_out(settings.uri(), config)
    show(done, dry_run=dry_run, as_json=settings.as_json)
    if not done.is_even:
        sys.exit(1)


def _still(bookie_id: str, left: Named, named: str) -> str:
    """What a bookie that is to go is waited for."""
    if left.asked is not None:
        return f"ZooKeeper was restored: {bookie_id} is asked what it holds, {left.asked} ledgers"
    if left.is_silent:
        return f"{bookie_id} does not say what it holds, which may be the last copies"
    if left.kept:
        return (
            f"{left.kept} ledgers lack copies that only {bookie_id} may have: "
            "see ledger autorecovery status"
        )
    return f"{named} name {bookie_id}"


_KEPT: Final = "keeps {} copies that restored metadata name elsewhere: see --give-back"


def _outcome(bookie_id: str, report: PassReport | None) -> tuple[object, ...]:
    if report is None:
        return (bookie_id, "not finished", "", "", "", "", "no answer yet: see its log")
    outcome = "ended early" if report.aborted else "dry run" if report.dry_run else "done"
    return (
        bookie_id,
        outcome,
        report.held,
        report.candidates,
        report.deleted,
        size_text(report.freed_bytes),
        report.aborted or _KEPT.format(report.kept) * bool(report.kept),
    )


def _cells(row: BookieRow) -> tuple[object, ...]:
    info, report = row.info, row.collected
    reclaimable = size_text(report.reclaimable_bytes) if report is not None else ""
    if report is None:
        collected = ""
    elif report.aborted:
        collected = "ended early"
    else:
        collected = f"{age_text(report.time_ms)} ago"
    if info is None:
        return (row.bookie_id, "down", "", "", "", reclaimable, "", collected, "")
    return (
        row.bookie_id,
        info.state.value,
        info.address,
        info.rack,
        size_text(info.free_bytes),
        reclaimable,
        info.admin_address,
        collected,
        info.reason or _why_not_collected(report),
    )


def _why_not_collected(report: PassReport | None) -> str:
    return f"not collected: {report.aborted}" if report is not None and report.aborted else ""


def _fields(row: BookieRow) -> dict[str, object]:
    return {
        "bookie_id": row.bookie_id,
        **_registered(row.info),
        "collection": _report(row.collected),
    }


def _registered(info: BookieInfo | None) -> dict[str, object]:
    if info is None:
        return {"state": "down"}
    return {
        "state": info.state.value,
        "address": info.address,
        "rack": info.rack,
        "free_bytes": info.free_bytes,
        "admin_address": info.admin_address,
        "reason": info.reason,
    }


def _report(report: PassReport | None) -> dict[str, object] | None:
    """For scripts; without the order that it followed, which means nothing to them."""
    import msgspec

    if report is None:
        return None
    fields: dict[str, object] = msgspec.to_builtins(report)
    del fields["order"]
    return fields
