"""``ledger bookies``: the bookies of a cluster."""

from __future__ import annotations

import click

from spark_ledger.cli.output import print_json, print_table, size_text
from spark_ledger.cli.settings import Settings, common_options
from spark_ledger.types import BookieInfo


@click.group()
def group() -> None:
    """The bookies of a cluster."""


@group.command("list")
@common_options
@click.pass_obj
def list_bookies(settings: Settings) -> None:
    """List all bookies of the cluster; one that is not running is shown as down."""
    from spark_ledger.cli.inspection import cluster_bookies

    rows = cluster_bookies(settings.uri())
    if settings.as_json:
        print_json([_fields(bookie_id, info) for bookie_id, info in rows])
        return
    print_table(
        ("bookie", "state", "address", "rack", "free#", "admin", "why"),
        (
            (
                bookie_id,
                info.state.value,
                info.address,
                info.rack,
                size_text(info.free_bytes),
                info.admin_address,
                info.reason,
            )
            if info
            else (bookie_id, "down", "", "", "", "", "")
            for bookie_id, info in rows
        ),
    )


def _fields(bookie_id: str, info: BookieInfo | None) -> dict[str, object]:
    if info is None:
        return {"bookie_id": bookie_id, "state": "down"}
    return {
        "bookie_id": bookie_id,
        "state": info.state.value,
        "address": info.address,
        "rack": info.rack,
        "free_bytes": info.free_bytes,
        "admin_address": info.admin_address,
        "reason": info.reason,
    }
