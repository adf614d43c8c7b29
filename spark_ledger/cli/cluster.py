"""``ledger cluster``: what concerns all of a cluster."""

from __future__ import annotations

import click

from spark_ledger.cli.output import print_json, print_table
from spark_ledger.cli.settings import Settings, common_options


@click.group()
def group() -> None:
    """What concerns all of a cluster."""


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
