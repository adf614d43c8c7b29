"""``ledger cluster``: what concerns all of a cluster."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import click

from spark_ledger.cli.arguments.amounts import count_from
from spark_ledger.cli.arguments.settings import Settings, common_options
from spark_ledger.cli.show.output import (
    print_json,
    print_table,
    progress,
    silence_text,
    size_text,
)

if TYPE_CHECKING:
    from spark_ledger.cli.safety import Standing
    from spark_ledger.cli.usage import Held, Usage


_PLACES: Final = count_from(1)


@click.group()
def group() -> None:
    """Show what a cluster holds, say where its copies go, and go on after a restore."""


@group.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--without-bookie",
    "without",
    multiple=True,
    metavar="ID",
    help="Do not wait for this bookie's answer: it is gone for good. May be repeated.",
)
@common_options
@click.pass_obj
def restored(settings: Settings, yes: bool, without: tuple[str, ...]) -> None:
    """Go on after ZooKeeper was restored from a backup.

    Asks every bookie which ledgers it holds, and has no id given again that one of them knows.
    Bookies that were started since the backup may start again. Ledgers that were made since the
    backup are not in the metadata any more; their ids are never given to others.
    """
    from spark_ledger.cli.inspection import after_a_restore

    uri = settings.uri()
    if not yes:
        click.confirm(
            "The metadata were restored from a backup, and that is the only copy in use. Go on?",
            abort=True,
            err=True,
        )
    done = after_a_restore(uri, without)
    if settings.as_json:
        print_json(done._asdict())
        return
    print_table(
        ("bookie", "ledgers below#", "may start"),
        (
            (bookie_id, done.next_ids.get(bookie_id, ""), bookie_id in done.may_start)
            for bookie_id in sorted({*done.next_ids, *done.without})
        ),
    )
    click.echo(
        f"\n{done.ledgers_in_metadata} ledgers in the metadata; the next ledger id is "
        f"{done.next_ledger_id} (was {done.next_ledger_id_before})"
    )
    for bookie_id in done.without_cookie:
        click.echo(
            f"\n{bookie_id} was formatted after the backup: it serves, and cannot start again. "
            "Stop it, run `ledger bookie relocate --config FILE` there, and start it"
        )


@group.command()
@click.option(
    "--verify",
    is_flag=True,
    help="Read every copy of every closed ledger instead, and compare it with the metadata and the "
    "other copies, byte for byte; exit status 1 if anything differs.",
)
@common_options
@click.pass_obj
def usage(settings: Settings, verify: bool) -> None:
    """Show what the cluster holds, by stream and bookie, and how long its disks last.

    Reads the metadata of all ledgers, page by page. What open ledgers hold is not known before they
    are closed.
    """
    from spark_ledger.cli.inspection import measure_usage

    uri = settings.uri()
    if verify:
        _verify(settings, uri)
        return
    with progress("reading the metadata of ledgers", None) as advance:
        found = measure_usage(uri, advance)
    if settings.as_json:
        print_json(_usage_fields(found))
        return
    rows = [
        (
            each.name if each.exists else f"{each.name} (deleted)",
            each.commits,
            each.held,
            "?" if each.dropped_bytes is None else size_text(each.dropped_bytes),
        )
        for each in sorted(found.streams.values(), key=lambda each: -each.held.replicated_bytes)
    ]
    print_table(
        ("stream", "commits#", "ledgers#", "open#", "user data#", "all copies#", "dropped#"),
        (
            *(
                (name, commits, *_held_cells(held), dropped)
                for name, commits, held, dropped in rows
            ),
            ("(no stream)", "", *_held_cells(found.raw), ""),
            ("total", "", *_held_cells(found.total), size_text(found.dropped_bytes)),
        ),
    )
    click.echo("")
    print_table(
        ("bookie", "state", "live#", "reclaimable#", "ledgers#", "free#"),
        (
            (
                bookie_id,
                bookie.state,
                size_text(bookie.live_bytes),
                _known(bookie.reclaimable_bytes),
                "" if bookie.ledgers is None else bookie.ledgers,
                _known(bookie.free_bytes),
            )
            for bookie_id, bookie in sorted(found.bookies.items())
        ),
    )
    click.echo("")
    _say_the_rest(found)


@group.command()
@common_options
@click.pass_obj
def status(settings: Settings) -> None:
    """Show how many confirmed entries are at WQ, at AQ, below AQ, or cannot be read now.

    Asks every bookie what it holds of every ledger: three questions or so for each. Reads no entry
    (see usage --verify) and changes nothing. Exit status 1 if a copy that repair has to make is
    missing, or a ledger does not adhere to the placement policy; 3 if entries have fewer than AQ
    copies on the bookies that answer.
    """
    from spark_ledger.cli.inspection import survey_cluster
    from spark_ledger.cli.safety import exit_status, fields

    with progress("asking bookies what they hold", None) as advance:
        found = survey_cluster(settings.uri(), advance)
    if settings.as_json:
        print_json(fields(found))
    else:
        _print_standing(found)
    click.get_current_context().exit(exit_status(found))


@group.command()
@click.option("--min-racks", type=_PLACES, help="Racks that hold the copies of an entry.")
@click.option("--min-regions", type=_PLACES, help="Regions that hold the copies of an entry.")
@click.option(
    "--min-racks-for-durability",
    type=_PLACES,
    help="No acknowledged entry is lost while fewer racks than this burn down.",
)
@click.option(
    "--min-regions-for-durability",
    type=_PLACES,
    help="No acknowledged entry is lost while fewer regions than this burn down.",
)
@click.option(
    "--strict/--not-strict",
    default=None,
    help="Refuse what cannot be placed so; or take the best there is, and say so.",
)
@common_options
@click.pass_obj
def placement(settings: Settings, /, **wanted: int | bool | None) -> None:
    """Show over how many racks and regions the copies of new entries are spread, or change it.

    Clients that are connected hear of a change within a minute. Repair moves closed ledgers that
    do not adhere to it, as far as there are bookies in other racks.
    """
    from dataclasses import asdict

    from spark_ledger.cli.inspection import placement_policy

    changes = {name: value for name, value in wanted.items() if value is not None}
    policy = asdict(placement_policy(settings.uri(), changes))
    if settings.as_json:
        print_json(policy)
        return
    for name, value in policy.items():
        shown = ("yes" if value else "no") if isinstance(value, bool) else value
        click.echo(f"{name:<27}{shown}")


def _print_standing(found: Standing) -> None:
    rows = [(zone.value, found.zones[zone]) for zone in found.zones]
    print_table(
        ("zone", "ledgers#", "entries#", "user data#"),
        (
            (name, each.ledgers, each.entries, size_text(each.user_bytes))
            for name, each in (*rows, ("not where the placement policy wants it", found.misplaced))
        ),
    )
    click.echo("")
    click.echo(
        f"ledgers    {found.ledgers}, {found.open} of them open; each counts once, where its"
    )
    click.echo("           worst confirmed entry is. What open ledgers hold is not in the bytes")
    states = Counter(found.bookies.values())
    click.echo("bookies    " + ", ".join(f"{n} {state}" for state, n in sorted(states.items())))
    for bookie_id, why in sorted(found.silent.items()):
        click.echo(f"silent     {silence_text(bookie_id, why)}")
    for bookie_id, why in sorted(found.unbelieved.items()):
        click.echo(f"unbelieved {bookie_id}: {why}")
    if found.unknown:
        click.echo(f"unknown    {found.unknown} ledgers cannot be looked at: {found.unknown_why}")
    if found.under_way:
        click.echo(f"under way  {found.under_way} entries below WQ that writers are at")
    if found.lacking:
        click.echo(f"lacking    {found.lacking} entries: see ledger autorecovery status")
    for ledger_id, safety in found.worst:
        click.echo(f"at risk    ledger {ledger_id}: {safety.value}; see ledger ledgers show")


def _verify(settings: Settings, uri: str) -> None:
    from dataclasses import asdict

    from spark_ledger.cli.inspection import verify_cluster

    with progress("reading all copies of ledgers", None) as advance:
        found = verify_cluster(uri, advance)
    if settings.as_json:
        print_json({**asdict(found), "is_well": found.is_well})
    else:
        print_table(
            (
                *("bookie", "ledgers#", "entries#", "user data#", "missing#", "damaged#"),
                *("beyond#", "not named#", "silent"),
            ),
            (
                (
                    bookie_id,
                    each.ledgers,
                    each.entries,
                    size_text(each.user_bytes),
                    each.missing,
                    each.damaged,
                    each.beyond,
                    each.left_ledgers,
                    each.silent,
                )
                for bookie_id, each in sorted(found.bookies.items())
            ),
        )
        click.echo("")
        held = sum(each.user_bytes for each in found.bookies.values())
        click.echo(f"named      {found.named_bytes} bytes in all copies of {found.closed} ledgers")
        click.echo(f"held       {held} bytes, compared one by one")
        click.echo(
            f"left out   {found.open} open, {found.changed} that changed meanwhile, "
            f"{found.unknown} unknown, {found.locked} with a password (their ids were compared)"
        )
        for fault in found.faults:
            click.echo(f"fault      {fault}")
    if not found.is_well:
        click.get_current_context().exit(1)


def _held_cells(held: Held) -> tuple[object, ...]:
    sizes = size_text(held.user_bytes), size_text(held.replicated_bytes)
    return (held.ledgers, held.open, *sizes)


def _known(size_bytes: int | None) -> str:
    return "" if size_bytes is None else size_text(size_bytes)


def _say_the_rest(found: Usage) -> None:
    click.echo(f"unnamed    {found.unnamed} ledgers that no commit has named yet")
    if found.unknown:
        click.echo(f"unknown    {found.unknown} nodes are in no sum: {found.unknown_why}")
    click.echo(
        f"dropped    {size_text(found.dropped_bytes)} of user data that the keeper is to give back"
    )
    nodes = "?" if found.metadata_nodes is None else found.metadata_nodes
    size = _known(found.metadata_bytes) or "a size that the server does not tell"
    click.echo(f"metadata   {nodes} nodes, {size} (all of the ZooKeeper server)")
    hours = found.rate_window_s / 3600
    if found.rate_bytes_s is None:
        click.echo("rate       not known: there are no ledgers older than ten minutes")
        return
    rate = f"{size_text(int(found.rate_bytes_s * 86_400))} a day"
    click.echo(f"rate       {rate}, by the closed ledgers of the last {hours:.1f} hours")
    if full := sum(each.is_at_its_limit for each in found.streams.values()):
        click.echo(f"           without {full} streams whose retention drops as much as comes")
    left = "no growth" if found.days_left is None else f"{found.days_left:.1f} days"
    click.echo(f"disks      {left} at that rate, {size_text(found.free_bytes)} free")


def _usage_fields(found: Usage) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "streams": [
            {"stream_id": stream_id, **asdict(each)} for stream_id, each in found.streams.items()
        ],
        "no_stream": asdict(found.raw),
        "total": asdict(found.total),
        "bookies": [
            {"bookie_id": bookie_id, **asdict(bookie)}
            for bookie_id, bookie in sorted(found.bookies.items())
        ],
        "unnamed_ledgers": found.unnamed,
        "unknown": found.unknown,
        "unknown_why": found.unknown_why,
        "dropped_bytes": found.dropped_bytes,
        "metadata_nodes": found.metadata_nodes,
        "metadata_bytes": found.metadata_bytes,
        "rate_bytes_s": found.rate_bytes_s,
        "rate_window_s": found.rate_window_s,
        "free_bytes": found.free_bytes,
        "days_left": found.days_left,
    }
