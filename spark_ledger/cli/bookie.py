"""``ledger bookie``: run, prepare and question one bookie. The server itself is another package."""

from __future__ import annotations

from datetime import timedelta

import click

from spark_ledger.cli.output import print_json, print_table, size_text
from spark_ledger.cli.settings import Settings, common_options


@click.group()
def group() -> None:
    """Run, prepare and question one bookie."""


@group.command()
@click.argument("bookie_id")
@common_options
@click.pass_obj
def status(settings: Settings, bookie_id: str) -> None:
    """Ask a running bookie how it is."""
    from spark_ledger.cli.inspection import describe_bookie

    info, words = describe_bookie(settings.uri(), bookie_id)
    if settings.as_json:
        print_json({"address": info.address, "rack": info.rack, **words._asdict()})
        return
    print_table(
        ("", ""),
        (
            ("bookie", words.bookie_id),
            ("cluster", words.cluster_id),
            ("state", words.state),
            ("address", info.address),
            ("admin", info.admin_address),
            ("rack", info.rack),
            ("version", words.version),
            ("up for", timedelta(seconds=int(words.uptime_s))),
            ("ledgers", words.ledgers),
            ("journal", size_text(words.journal_bytes)),
            ("entry logs", size_text(words.entry_log_bytes)),
            ("free", size_text(words.free_bytes)),
        ),
    )
