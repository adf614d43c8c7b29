"""``ledger streams append``: lines of JSON become rows of a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, BinaryIO, Final

import click

from spark_ledger.cli.arguments.amounts import count_from
from spark_ledger.cli.arguments.json_rows import parse_row, to_batch
from spark_ledger.cli.arguments.settings import Settings, common_options, standard_input
from spark_ledger.cli.show.output import print_json, progress
from spark_ledger.limits import MIB

if TYPE_CHECKING:
    import pyarrow

_BLOCK_BYTES: Final = 4 * MIB
"""Of lines that become one batch: enough that the cost of a batch does not count."""

_Line = tuple[int, bytes]
"""A line with its number, counted from 1 as editors do."""


@click.command()
@click.argument("name")
@click.option("--file", type=click.File("rb"), help="Read this instead of standard input.")
@click.option(
    "--commit-rows",
    type=count_from(1),
    metavar="N",
    help="Commit so many rows at a time. [default: all of them are one commit]",
)
@click.option("--sink-id", metavar="ID", help="With --transaction: append at most once.")
@click.option("--transaction", type=count_from(0), metavar="N", help="Its number; ascends.")
@common_options
@click.pass_obj
def append(
    settings: Settings,
    name: str,
    file: BinaryIO | None,
    commit_rows: int | None,
    sink_id: str | None,
    transaction: int | None,
) -> None:
    """Append rows to a stream: each line of the input is one, as a JSON object.

    Columns that a line lacks are null; the rest is as "read --json" prints it. At a line that is
    no row the command fails, and nothing of its commit is appended.
    """
    if (sink_id is None) != (transaction is None):
        raise click.UsageError("--sink-id and --transaction belong together")
    if sink_id is not None and commit_rows is not None:
        raise click.UsageError("a transaction is one commit: leave --commit-rows out")
    lines = _lines(file or standard_input())
    rows = commits = 0
    is_new = True
    with (
        settings.connect_streams() as client,
        client.stream(name) as stream,
        progress(f"appending to {name}", None) as advance,
    ):
        while (first := next(lines, None)) is not None:
            of_commit = chain([first], islice(lines, commit_rows and commit_rows - 1))
            made = stream.append(
                _batches(of_commit, stream.schema, advance),
                sink_id=sink_id,
                transaction_id=transaction,
            )
            is_new = made.applied
            rows += made.rows if is_new else 0
            commits += is_new
    if settings.as_json:
        print_json({"stream": name, "rows": rows, "commits": commits, "applied": is_new})
    elif is_new:
        click.echo(f"stream {name}: {rows} rows in {commits} commits")
    else:
        click.echo(f"stream {name}: transaction {transaction} of {sink_id} was there already")


def _lines(source: BinaryIO) -> Iterator[_Line]:
    """The lines that are not empty."""
    return ((number, line) for number, line in enumerate(source, 1) if not line.isspace())


def _batches(
    lines: Iterator[_Line], schema: pyarrow.Schema, advance: Callable[[int], None]
) -> Iterator[pyarrow.RecordBatch]:
    """Rows of lines, in blocks. Wrong usage, with the number of the line, if one is no row."""
    block: list[_Line] = []
    size_bytes = 0
    for line in lines:
        block.append(line)
        size_bytes += len(line[1])
        if size_bytes >= _BLOCK_BYTES:
            yield _batch(block, schema)
            advance(len(block))
            block, size_bytes = [], 0
    if block:
        yield _batch(block, schema)
        advance(len(block))


def _batch(block: list[_Line], schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    try:
        return to_batch([parse_row(line, schema) for _, line in block], schema)
    except ValueError:
        pass
    for number, line in block:
        try:
            to_batch([parse_row(line, schema)], schema)
        except ValueError as error:
            raise click.UsageError(f"line {number}: {error}") from None
    raise AssertionError("lines that are rows each are rows together")
