"""``ledger keeper audit``: what no index lists and nothing names, and what audits have done."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import click

from spark_ledger.cli.arguments.amounts import number_from
from spark_ledger.cli.arguments.settings import Settings, common_options
from spark_ledger.cli.show.output import JsonArray, age_text, print_table, size_text, time_text
from spark_ledger.limits.keeper import UNNAMED_GRACE_S

if TYPE_CHECKING:
    from spark_ledger.keeper.audit_pages import Finding
    from spark_ledger.keeper.nodes import AuditState

_COLUMNS: Final = ("ledger#", "stream", "state", "user data#", "noted for", "due")


@click.command()
@click.option("--dry-run", is_flag=True, help="Look now, print what is found, and do nothing.")
@click.option(
    "--unnamed-grace",
    type=number_from(0),
    default=UNNAMED_GRACE_S,
    show_default=True,
    metavar="SECONDS",
    help="With --dry-run: what was noted for so long is due.",
)
@common_options
@click.pass_obj
def audit(settings: Settings, dry_run: bool, unnamed_grace: float) -> None:
    """Have the keeper look for ledgers of streams that no index lists and nothing names.

    What two audits find is deleted, if it was noted for long enough: what former versions left, and
    commits of more than a thousand ledgers that failed.
    """
    uri = settings.uri()
    if not dry_run:
        asyncio.run(_ask(uri))
        click.echo("the keeper begins an audit within some passes: see `ledger keeper status`")
        return
    asyncio.run(_look(uri, unnamed_grace, as_json=settings.as_json))


def _cells(finding: Finding) -> tuple[object, ...]:
    from spark_ledger.cli.retention import span_text
    from spark_ledger.stream.ledgers import stream_of

    ledger, noted_s = finding.ledger.value, finding.noted_s
    size = size_text(ledger.length) if ledger.is_closed else ""
    noted = "" if noted_s is None else span_text(noted_s)
    return (
        ledger.ledger_id,
        stream_of(ledger),
        ledger.state.value,
        size,
        noted,
        finding.verdict.value,
    )


async def _ask(uri: str) -> None:
    from spark_ledger.errors import ConflictError
    from spark_ledger.keeper.nodes import ask_for_audit
    from spark_ledger.metadata.base import again
    from spark_ledger.metadata.connect import connected_store

    async with connected_store(uri) as store:
        # The keeper may just have written how far it is.
        await again(lambda: ask_for_audit(store), ConflictError)


async def _look(uri: str, grace_s: float, *, as_json: bool) -> None:
    """Print what is found, a page at a time: former versions may have left a million ledgers."""
    from spark_ledger.client.ledger_client import LedgerClient
    from spark_ledger.keeper.audit_pages import finding_fields
    from spark_ledger.keeper.config import KeeperConfig
    from spark_ledger.keeper.keeper import Keeper

    config = KeeperConfig(dry_run=True, unnamed_grace_s=grace_s)
    array, is_empty = JsonArray(), True
    async with (
        await LedgerClient.connect(uri) as client,
        aclosing(Keeper(client, config).audit()) as pages,
    ):
        async for found in pages:
            is_empty = is_empty and not found
            if as_json:
                array.print(map(finding_fields, found))
            elif found:
                print_table(_COLUMNS, map(_cells, found))
    if as_json:
        array.end()
    elif is_empty:
        print_table(_COLUMNS, ())


def audit_fields(state: AuditState | None) -> dict[str, object] | None:
    """What audits have done, for scripts."""
    import msgspec

    return None if state is None else msgspec.to_builtins(state)


def audit_lines(state: AuditState | None) -> list[str]:
    """The same, for people."""
    if state is None:
        return []
    lines = []
    if state.begun_s is not None:
        lines.append(f"audit: under way, found {state.so_far.ledgers} ledgers so far")
    elif state.is_asked:
        lines.append("audit: begins soon")
    if state.ended_ms:
        last = state.last
        lines.append(
            f"last audit {time_text(state.ended_ms)}, {age_text(state.ended_ms)} ago: found "
            f"{last.ledgers} ledgers ({size_text(last.user_bytes)}) that nothing names, deleted "
            f"{last.deleted}; {state.deleted} by all audits"
        )
        if state.unread:
            lines.append(f"the audit could not read {', '.join(state.unread)}")
    return lines
