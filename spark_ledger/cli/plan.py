"""``ledger streams plan``: the partitions that Spark makes of a stream, and whom they ask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

import click
import msgspec

from spark_ledger.amounts import parse_size_bytes
from spark_ledger.cli.arguments.amounts import Amount, count_from
from spark_ledger.cli.arguments.positions import position, position_text
from spark_ledger.cli.arguments.settings import Settings, common_options
from spark_ledger.cli.show.output import print_json, print_table, size_text
from spark_ledger.limits import KIB
from spark_ledger.types import Dlsn

if TYPE_CHECKING:
    from spark_ledger.stream.blocking import Stream
    from spark_ledger.stream.plan.balance import FirstRead
    from spark_ledger.stream.plan.partitions import Plan, Span

_TIME: Final = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S.%f"])

_SHOWN_MAX: Final = 4
"""Fragments of a partition in the table; ``--json`` has all."""


class _Row(NamedTuple):
    """A partition as it is shown."""

    start: Dlsn
    commits: range
    rows: int
    size_bytes: int
    reads: tuple[FirstRead, ...]
    is_span: bool = False
    """The task looks the commits up, and ``reads`` is reckoned from the first of them."""


@click.command()
@click.argument("name")
@click.option("--start", callback=position, default="earliest", show_default=True)
@click.option("--end", callback=position, default="latest", show_default=True, help="Excluded.")
@click.option(
    "--partitions",
    type=count_from(1),
    default=1,
    help="The least number of partitions, as Spark's option minPartitions.",
)
@click.option(
    "--max-bytes",
    type=Amount("size", parse_size_bytes(64 * KIB)),
    help="The most bytes of a partition, as Spark's option maxBytesPerPartition.",
)
@click.option("--time-from", "time_from", type=_TIME, help="Only rows of this event time on.")
@click.option("--time-until", "time_until", type=_TIME, help="Only rows of an earlier event time.")
@click.option("--key", help='Only rows of this key: a value, or JSON such as {"a": "1"}.')
@common_options
@click.pass_obj
def plan(
    settings: Settings,
    name: str,
    start: str | Dlsn,
    end: str | Dlsn,
    partitions: int,
    max_bytes: float | None,
    time_from: datetime | None,
    time_until: datetime | None,
    key: str | None,
) -> None:
    """Show the partitions that Spark makes of a stream: their rows, bytes, fragments and bookies.

    A query makes the same ones. A fragment is named LEDGER:FIRST ENTRY. A task prefers a bookie on
    its own host, and asks another where the planned one is slow or away.

    Of more than 4,096 segments, bookies are those of the first commit of each partition.

    With a time or a key, segments that can have no such row are skipped, as a query with the
    options startingEventTime, endingEventTime and keyEquals does; the last line says how much.
    """
    from spark_ledger.stream.plan.partitions import PlanLimits, Span
    from spark_ledger.stream.plan.read_plan import plan_read
    from spark_ledger.stream.row_filter import RowFilter
    from spark_ledger.stream.where import where as condition

    limits = PlanLimits(partitions, None if max_bytes is None else int(max_bytes))
    with settings.connect_streams() as client, client.stream(name) as stream:
        head = stream.head()
        words = {"earliest": head.earliest, "latest": head.end}
        first, last = (words[at] if isinstance(at, str) else at for at in (start, end))
        asked = condition(event_time_from=time_from, event_time_until=time_until, key=_key(key))
        wanted = None if asked.is_all else RowFilter(asked, stream.config)
        planned = plan_read(stream, first, last, limits, None, wanted)
        rows = [_row(stream, each) for each in planned]
        skipped = None
        if wanted is not None and not any(isinstance(each, Span) for each in planned):
            whole = plan_read(stream, first, last, limits)
            skipped = _skipped(rows, [_row(stream, each) for each in whole])
    if settings.as_json:
        if skipped is not None:
            print_json(skipped)
        for number, row in enumerate(rows):
            print_json(_fields(number, row))
        return
    print_table(
        ("partition#", "from", "rows#", "size#", "fragments", "asks first"),
        (
            (
                number,
                position_text(row.start),
                row.rows,
                size_text(row.size_bytes),
                f"of commits {row.commits.start}..{row.commits[-1]}"
                if row.is_span
                else _few(dict.fromkeys(f"{part.ledger_id}:{part.fragment}" for part in row.reads)),
                _few(f"{b} {size_text(n)}" for b, n in _by_bookie([row]).most_common())
                or "found by the task",
            )
            for number, row in enumerate(rows)
        ),
    )
    click.echo()
    print_table(
        ("bookie", "size#"),
        sorted((bookie, size_text(size)) for bookie, size in _by_bookie(rows).items()),
    )
    if skipped is not None:
        size = size_text(skipped["bytes_skipped"])
        click.echo(f"\nskipped: {skipped['rows_skipped']} rows ({size}) that cannot match")


def _key(text: str | None) -> str | dict[str, str] | None:
    """A key as the option has it."""
    if text is None or not text.lstrip().startswith("{"):
        return text
    try:
        values = msgspec.json.decode(text, type=dict[str, str | int | bool])
    except msgspec.MsgspecError as error:
        raise click.BadParameter(f"{text!r} is no JSON object of columns ({error})") from None
    return {name: str(value) for name, value in values.items()}


def _skipped(rows: list[_Row], whole: list[_Row]) -> dict[str, int]:
    """How much of a read needs not be read."""
    return {
        "rows_skipped": sum(row.rows for row in whole) - sum(row.rows for row in rows),
        "bytes_skipped": sum(row.size_bytes for row in whole) - sum(row.size_bytes for row in rows),
    }


def _row(stream: Stream, planned: Plan | Span) -> _Row:
    from spark_ledger.stream.plan.partitions import Plan
    from spark_ledger.stream.ranges import size_between

    if isinstance(planned, Plan):
        first, last = planned.ranges[0], planned.ranges[-1]
        return _Row(
            Dlsn(first.segment.number, *first.start),
            range(first.commit, last.commit + 1),
            planned.rows,
            planned.size_bytes,
            planned.reads.parts,
        )
    first_commit, last_commit = (stream.commit(planned.commits[at]) for at in (0, -1))
    rows, size_bytes = size_between(first_commit, last_commit, planned.start, planned.end)
    return _Row(
        planned.start,
        planned.commits,
        rows,
        size_bytes,
        planned.reads.parts,
        is_span=True,
    )


def _fields(number: int, row: _Row) -> dict[str, object]:
    """A partition for scripts."""
    return {
        "partition": number,
        "start": row.start._asdict(),
        "commits": [row.commits.start, row.commits[-1]],
        "rows": row.rows,
        "bytes": row.size_bytes,
        "bookies": dict(_by_bookie([row]).most_common()),
        "fragments": [
            {
                "ledger_id": part.ledger_id,
                "first_entry": part.fragment,
                "bookie_id": part.bookie_id,
                "bytes": part.size_bytes,
            }
            for part in row.reads
        ],
    }


def _by_bookie(rows: list[_Row]) -> Counter[str]:
    """How many bytes each bookie is asked for."""
    found: Counter[str] = Counter()
    for row in rows:
        for part in row.reads:
            found[part.bookie_id] += part.size_bytes
    return found


def _few(texts: Iterable[str]) -> str:
    """Some texts on one line, and how many more there are."""
    found = list(texts)
    more = len(found) - _SHOWN_MAX
    return ", ".join(found[:_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
