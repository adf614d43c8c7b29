"""``ledger streams``: list, create, show, read, tail, delete."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click
import msgspec

from spark_ledger.cli.ddl import parse_columns
from spark_ledger.cli.ledgers import confirm
from spark_ledger.cli.output import payload_fields, print_json, print_table, progress
from spark_ledger.cli.settings import Settings, common_options
from spark_ledger.types import Dlsn

if TYPE_CHECKING:
    import pyarrow

CELL_CHARS_MAX = 40
_SHORT = re.compile(r"(\d+)(?::(\d+))?(?::(\d+))?")


class JsonPosition(msgspec.Struct, forbid_unknown_fields=True):
    """A position as Spark options spell it; entry and slot may be left out."""

    segment: int
    entry: int = 0
    slot: int = 0


def position(_context: click.Context, _parameter: click.Parameter, value: str) -> str | Dlsn:
    """``earliest``, ``latest``, SEGMENT[:ENTRY[:SLOT]], or the JSON of Spark's options."""
    if value in ("earliest", "latest"):
        return value
    short = _SHORT.fullmatch(value)
    if short:
        return Dlsn(*(int(part or 0) for part in short.groups()))
    try:
        found = msgspec.json.decode(value, type=JsonPosition)
        return Dlsn(found.segment, found.entry, found.slot)
    except msgspec.MsgspecError:
        raise click.BadParameter(
            f'{value!r}: use earliest, latest, 3, 3:0:5 or {{"segment": 3, "entry": 0}}'
        ) from None


stream_argument = click.argument("name")


@click.group()
def group() -> None:
    """Look at and read streams."""


@group.command("list")
@common_options
@click.pass_obj
def list_streams(settings: Settings) -> None:
    """List all streams."""
    with settings.connect() as client:
        names = client.list_streams()
    if settings.as_json:
        for name in names:
            print_json({"stream": name})
    else:
        print_table(("stream",), ((name,) for name in names))


@group.command()
@stream_argument
@click.option(
    "--schema", required=True, metavar="COLUMNS", help='Columns: "id bigint, name string".'
)
@click.option("--ensemble", default=3, show_default=True, help="Bookies of a ledger (E).")
@click.option("--write-quorum", default=3, show_default=True, help="Copies of an entry (WQ).")
@click.option("--ack-quorum", default=2, show_default=True, help="Copies that confirm it (AQ).")
@common_options
@click.pass_obj
def create(
    settings: Settings,
    name: str,
    schema: str,
    ensemble: int,
    write_quorum: int,
    ack_quorum: int,
) -> None:
    """Create an empty stream."""
    columns = parse_columns(schema)
    with settings.connect() as client:
        client.create_stream(
            name,
            schema=columns,
            ensemble_size=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
        )
    if settings.as_json:
        print_json({"stream": name, "created": True})
    else:
        click.echo(f"stream {name} created")


@group.command()
@stream_argument
@click.option("--start", callback=position, default="earliest", show_default=True)
@click.option("--end", callback=position, default="latest", show_default=True, help="Excluded.")
@click.option("--limit", type=click.IntRange(min=1), help="Stop after this many rows.")
@common_options
@click.pass_obj
def read(
    settings: Settings, name: str, start: str | Dlsn, end: str | Dlsn, limit: int | None
) -> None:
    """Print committed rows, as a table or with --json as one object a line."""
    with settings.connect() as client:
        batches = client.stream(name).read(start=start, end=end)
        print_rows(batches, as_json=settings.as_json, limit=limit)


@group.command()
@stream_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@common_options
@click.pass_obj
def delete(settings: Settings, name: str, yes: bool) -> None:
    """Delete a stream and its ledgers for good."""
    confirm(yes, f"Delete stream {name} and all its data for good?")
    with settings.connect() as client, progress(f"deleting {name}", None):
        client.delete_stream(name)
    if settings.as_json:
        print_json({"stream": name, "deleted": True})


def print_rows(
    batches: Iterable[pyarrow.RecordBatch], *, as_json: bool, limit: int | None = None
) -> int:
    """Print rows, each batch as soon as it is there; the number of rows printed."""
    printed = 0
    for batch in batches:
        part = batch if limit is None else batch.slice(0, limit - printed)
        rows = part.to_pylist()
        if as_json:
            for row in rows:
                print_json({name: json_value(value) for name, value in row.items()})
        elif rows:
            names = part.schema.names
            print_table(names, ([cell_text(row[name]) for name in names] for row in rows))
        printed += part.num_rows
        if limit is not None and printed >= limit:
            break
    return printed


def json_value(value: Any) -> Any:
    """A cell for JSON: bytes as text or base64; what else JSON lacks is printed as text."""
    return dict(payload_fields(value)) if isinstance(value, bytes) else value


def cell_text(value: Any) -> str:
    """A cell for people, cut if long."""
    text = "" if value is None else str(value)
    return text if len(text) <= CELL_CHARS_MAX else text[: CELL_CHARS_MAX - 1] + "…"
