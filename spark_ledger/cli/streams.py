"""``ledger streams``: list, create, show, read, tail, delete; other files have the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from spark_ledger.cli.appending import append
from spark_ledger.cli.arguments.amounts import count_from, number_from
from spark_ledger.cli.arguments.ddl import parse_columns
from spark_ledger.cli.arguments.positions import position, position_text
from spark_ledger.cli.arguments.settings import Settings, common_options
from spark_ledger.cli.ledgers import confirm
from spark_ledger.cli.optimize import optimize
from spark_ledger.cli.plan import plan
from spark_ledger.cli.retention import hold, limit_options, limits_of, retention, truncate
from spark_ledger.cli.show.cells import json_value, print_cells, rows_of
from spark_ledger.cli.show.extent import facts as extent_facts
from spark_ledger.cli.show.extent import fields as extent_fields
from spark_ledger.cli.show.extent import ledger_facts
from spark_ledger.cli.show.extent import line as extent_line
from spark_ledger.cli.show.output import (
    print_json,
    print_table,
    progress,
    size_text,
    time_text,
)
from spark_ledger.types import Dlsn

if TYPE_CHECKING:
    import pyarrow

    from spark_ledger.stream.model import Commit, Head, StreamConfig

stream_argument = click.argument("name")


@click.group()
def group() -> None:
    """Create, read, truncate and delete streams; say how much is kept."""


for command in (append, plan, optimize, truncate, retention, hold):
    group.add_command(command)


@group.command("list")
@common_options
@click.pass_obj
def list_streams(settings: Settings) -> None:
    """List all streams."""
    with settings.connect_streams() as client:
        names = client.list_streams()
    if settings.as_json:
        print_json([{"stream": name} for name in names])
    else:
        print_table(("stream",), ((name,) for name in names))


@group.command(params=limit_options("retention-"))
@stream_argument
@click.option(
    "--schema", required=True, metavar="COLUMNS", help='Columns: "id bigint, name string".'
)
@click.option("--ensemble", default=3, show_default=True, help="Bookies of a ledger (E).")
@click.option("--write-quorum", default=3, show_default=True, help="Copies of an entry (WQ).")
@click.option("--ack-quorum", default=2, show_default=True, help="Copies that confirm it (AQ).")
@click.option("--key", "keys", multiple=True, metavar="COLUMN", help="A key column; repeatable.")
@click.option("--time", "time_column", metavar="COLUMN", help="The column of the event time.")
@common_options
@click.pass_obj
def create(
    settings: Settings,
    name: str,
    schema: str,
    ensemble: int,
    write_quorum: int,
    ack_quorum: int,
    age_s: float | None,
    size_bytes: int | None,
    rows: int | None,
    keys: tuple[str, ...],
    time_column: str | None,
) -> None:
    """Create an empty stream. With --key or --time readers can ask for a key or a time."""
    columns = parse_columns(schema)
    with settings.connect_streams() as client:
        client.create_stream(
            name,
            schema=columns,
            ensemble_size=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            retention=limits_of(age_s, size_bytes, rows),
            key_columns=keys,
            time_column=time_column,
        )
    if settings.as_json:
        print_json({"stream": name, "created": True})
    else:
        click.echo(f"stream {name} created")


@group.command()
@stream_argument
@click.option("--start", callback=position, default="earliest", show_default=True)
@click.option("--end", callback=position, default="latest", show_default=True, help="Excluded.")
@click.option("--limit", type=count_from(1), help="Stop after this many rows.")
@common_options
@click.pass_obj
def read(
    settings: Settings, name: str, start: str | Dlsn, end: str | Dlsn, limit: int | None
) -> None:
    """Print committed rows, as a table or with --json as one object a line."""
    with settings.connect_streams() as client, client.stream(name) as stream:
        print_rows(stream.read(start, end), as_json=settings.as_json, limit=limit)


@group.command()
@stream_argument
@click.option("--start", callback=position, default="latest", show_default=True)
@click.option(
    "--idle-timeout", type=number_from(), help="Stop after this many seconds without a row."
)
@common_options
@click.pass_obj
def tail(settings: Settings, name: str, start: str | Dlsn, idle_timeout: float | None) -> None:
    """Print rows as they are committed."""
    with settings.connect_streams() as client, client.stream(name) as stream:
        print_rows(stream.tail(start, idle_timeout=idle_timeout), as_json=settings.as_json)


@group.command()
@stream_argument
@click.option(
    "--commits",
    type=count_from(0),
    default=10,
    show_default=True,
    help="How many of the last commits.",
)
@click.option("--ledgers", "counts", is_flag=True, help="Count its ledgers: reads all commits.")
@common_options
@click.pass_obj
def show(settings: Settings, name: str, commits: int, counts: bool) -> None:
    """Show how far a stream reaches, what is kept of it, its columns and its last commits."""
    with settings.connect_streams() as client, client.stream(name) as stream:
        config, extent = stream.config, stream.retention.extent()
        head = extent.head
        first = max(head.earliest_commit, head.next_commit - commits)
        recent = stream.commits(first, head.next_commit)
        ledgers = stream.retention.ledgers() if counts else None
    if settings.as_json:
        counted = {} if ledgers is None else {"ledgers": ledgers._asdict()}
        print_json({**stream_fields(config, head, recent), **extent_fields(extent), **counted})
        return
    facts = (
        ("stream", config.name),
        ("id", config.stream_id),
        ("replication", config.quorums),
        ("compression", config.compression.value),
        ("created", time_text(config.created_ms)),
        ("rows", f"{head.rows} ({size_text(head.size_bytes)}), since it began"),
        (
            "commits",
            f"{head.next_commit}, of which {extent.sealed_commits} were put into manifests",
        ),
        ("", extent_line(extent)),
        *extent_facts(extent),
        *ledger_facts(ledgers),
        ("earliest", position_text(head.earliest)),
        ("end", position_text(head.end)),
        *(
            (f"clock at {number}", "a writer's clock was far ahead before this commit")
            for number in head.time_resets[-3:]
        ),
        *([("key", ", ".join(config.key_columns))] if config.key_columns else []),
        *([("event time", config.time_column)] if config.time_column else []),
        *((f"column {field.name}", field.type) for field in config.schema),
    )
    print_table(("", ""), facts)
    if recent:
        click.echo()
        print_table(
            ("commit#", "time", "segments", "rows#", "size#", "sink", "transaction#"),
            (
                (
                    commit.number,
                    time_text(commit.time_ms),
                    f"{commit.first_segment}..{commit.end_segment - 1}" if commit.segments else "",
                    commit.rows,
                    size_text(commit.size_bytes),
                    commit.sink_id,
                    commit.transaction_id,
                )
                for commit in recent
            ),
        )


def stream_fields(config: StreamConfig, head: Head, commits: list[Commit]) -> dict[str, object]:
    """A stream for scripts."""
    return {
        "stream": config.name,
        "stream_id": config.stream_id,
        "ensemble_size": config.quorums.ensemble_size,
        "write_quorum": config.quorums.write_quorum,
        "ack_quorum": config.quorums.ack_quorum,
        "compression": config.compression.value,
        "created_ms": config.created_ms,
        "schema": [
            {"name": field.name, "type": str(field.type), "nullable": field.nullable}
            for field in config.schema
        ],
        "schema_version": config.schema_version,
        "key_columns": list(config.key_columns),
        "time_column": config.time_column,
        "rows": head.rows,
        "bytes": head.size_bytes,
        "earliest": head.earliest._asdict(),
        "end": head.end._asdict(),
        "next_commit": head.next_commit,
        "commits": [
            {
                "number": commit.number,
                "time_ms": commit.time_ms,
                "first_segment": commit.first_segment,
                "segments": len(commit.segments),
                "rows": commit.rows,
                "bytes": commit.size_bytes,
                "sink_id": commit.sink_id,
                "transaction_id": commit.transaction_id,
            }
            for commit in commits
        ],
    }


@group.command()
@stream_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@common_options
@click.pass_obj
def delete(settings: Settings, name: str, yes: bool) -> None:
    """Delete a stream and its ledgers for good."""
    confirm(yes, f"Delete stream {name} and all its data for good?")
    with settings.connect_streams() as client, progress(f"deleting {name}", None):
        client.delete_stream(name)
    if settings.as_json:
        print_json({"stream": name, "deleted": True})


def print_rows(
    batches: Iterable[pyarrow.RecordBatch], *, as_json: bool, limit: int | None = None
) -> int:
    """Print rows, each batch as soon as it is there; the number of rows printed."""
    printed = 0
    widths: list[int] | None = None
    for batch in batches:
        part = batch if limit is None else batch.slice(0, limit - printed)
        rows = rows_of(part)
        if as_json:
            for row in rows:
                print_json(json_value(row))
        elif rows:
            widths = print_cells(part.schema.names, rows, above=widths)
        printed += part.num_rows
        if limit is not None and printed >= limit:
            break
    return printed
