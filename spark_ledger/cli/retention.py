"""``ledger streams truncate``, ``retention``, ``hold``: where a stream begins, who needs it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from spark_ledger.cli.arguments.amounts import AGE_S, count_from, size_of
from spark_ledger.cli.arguments.positions import position, position_or_time, position_text
from spark_ledger.cli.arguments.settings import Settings, common_options
from spark_ledger.cli.ledgers import confirm
from spark_ledger.cli.show.output import print_json, print_table, size_text, time_text
from spark_ledger.types import Dlsn

if TYPE_CHECKING:
    from spark_ledger.stream.model import Retention
    from spark_ledger.stream.retention.rules import Hold

stream_argument = click.argument("name")


@click.command()
@stream_argument
@click.option(
    "--before",
    required=True,
    callback=position_or_time,
    metavar="POSITION|TIME",
    help="What comes before goes: latest, 3:0:5, 2026-01-31T12:00:00Z, or 7d for a week ago.",
)
@click.option("--ignore-holds", is_flag=True, help="Drop what a hold keeps as well.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@common_options
@click.pass_obj
def truncate(
    settings: Settings, name: str, before: str | Dlsn | float, ignore_holds: bool, yes: bool
) -> None:
    """Drop the commits before a position or a time for good.

    Whole commits go. Readers begin behind them at once; the keeper frees the space later.
    """
    is_time = isinstance(before, float)
    bound = time_text(int(before)) if isinstance(before, float) else before
    shown = position_text(bound) if isinstance(bound, Dlsn) else bound
    confirm(yes, f"Drop all rows of stream {name} before {shown} for good?")
    with settings.connect_streams() as client, client.stream(name) as stream:
        earliest = stream.retention.truncate(
            None if isinstance(before, float) else before,
            before_ms=int(before) if isinstance(before, float) else None,
            ignore_holds=ignore_holds,
        )
    if settings.as_json:
        print_json({"stream": name, "earliest": earliest._asdict(), "by_time": is_time})
    else:
        click.echo(f"stream {name} begins at {position_text(earliest)}")


def limit_options(prefix: str = "") -> list[click.Option]:
    """The options that say what is kept."""
    return [
        click.Option(
            [f"--{prefix}age", "age_s"],
            type=AGE_S,
            metavar="TIME",
            help="Keep rows so long: 7d.",
        ),
        click.Option(
            [f"--{prefix}bytes", "size_bytes"],
            type=size_of(1),
            metavar="SIZE",
            help="Keep so much payload: 2g.",
        ),
        click.Option(
            [f"--{prefix}rows", "rows"],
            type=count_from(1),
            metavar="N",
            help="Keep the last N rows.",
        ),
    ]


def limits_of(age_s: float | None, size_bytes: int | None, rows: int | None) -> Retention | None:
    """What is to be kept, or None if nothing was said."""
    from spark_ledger.stream.model import Retention

    found = Retention(
        age_s=age_s, size_bytes=None if size_bytes is None else int(size_bytes), rows=rows
    )
    return None if found.is_for_ever else found


@click.command(params=limit_options())
@stream_argument
@click.option("--none", "for_ever", is_flag=True, help="Keep all.")
@common_options
@click.pass_obj
def retention(
    settings: Settings,
    name: str,
    age_s: float | None,
    size_bytes: int | None,
    rows: int | None,
    for_ever: bool,
) -> None:
    """Show how much of a stream is kept; with options, set it. What is left out has no limit.

    At least so much is kept. The keeper drops what is older, about once a minute.
    """
    from spark_ledger.stream.model import Retention

    limits = limits_of(age_s, size_bytes, rows)
    if for_ever and limits is not None:
        raise click.UsageError("--none keeps all: give it alone")
    with settings.connect_streams() as client, client.stream(name) as stream:
        if limits is not None or for_ever:
            stream.retention.set_limits(limits or Retention())
        kept = stream.retention.limits()
    if settings.as_json:
        print_json({"stream": name, **limit_fields(kept)})
    else:
        click.echo(f"stream {name} keeps {limits_text(kept)}")


def limit_fields(kept: Retention) -> dict[str, object]:
    """The limits for scripts."""
    return {"age_s": kept.age_s, "bytes": kept.size_bytes, "rows": kept.rows}


def limits_text(kept: Retention) -> str:
    """The limits for people."""
    parts = []
    if kept.age_s is not None:
        parts.append(f"the last {span_text(kept.age_s)}")
    if kept.size_bytes is not None:
        parts.append(f"the last {size_text(kept.size_bytes)}")
    if kept.rows is not None:
        parts.append(f"the last {kept.rows} rows")
    return ", at most ".join(parts) or "all rows"


def span_text(seconds: float) -> str:
    """A time span in the largest unit of which it has one: 604800 -> 7 d, 5400 -> 1.5 h."""
    for unit_s, letter in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:,.2f}".rstrip("0").rstrip(".") + f" {letter}"
    return f"{seconds:.3g} s"


@click.group()
def hold() -> None:
    """Keep rows for a reader that is slow, or stopped for a while."""


@hold.command()
@stream_argument
@click.argument("hold")
@click.option(
    "--position",
    "start",
    callback=position,
    default="earliest",
    show_default=True,
    help="Rows from here on are kept.",
)
@click.option("--expires", required=True, type=AGE_S, metavar="TIME", help="When it ends: 1h, 2d.")
@click.option(
    "--bytes",
    "size_bytes",
    type=size_of(1),
    metavar="SIZE",
    help="It also ends once so much follows.",
)
@common_options
@click.pass_obj
def add(
    settings: Settings,
    name: str,
    hold: str,
    start: str | Dlsn,
    expires: float,
    size_bytes: int | None,
) -> None:
    """Make a hold; or move and renew the one of that name."""
    with settings.connect_streams() as client, client.stream(name) as stream:
        made = stream.retention.hold(
            hold,
            start,
            for_s=expires,
            size_bytes_max=None if size_bytes is None else int(size_bytes),
        )
    if settings.as_json:
        print_json({"stream": name, **hold_fields(made)})
    else:
        click.echo(
            f"hold {made.name} keeps stream {name} from {position_text(made.position)} on, until "
            f"{time_text(made.expires_ms)}"
        )


@hold.command("list")
@stream_argument
@common_options
@click.pass_obj
def list_holds(settings: Settings, name: str) -> None:
    """List the holds of a stream, with the bytes that each keeps."""
    with settings.connect_streams() as client, client.stream(name) as stream:
        holds, head = stream.retention.holds(), stream.head()
    if settings.as_json:
        print_json([{**hold_fields(each), "bytes": each.held_bytes(head)} for each in holds])
        return
    print_table(
        ("hold", "from", "keeps#", "at most#", "until"),
        (
            (
                each.name,
                position_text(each.position),
                size_text(each.held_bytes(head)),
                "" if each.size_bytes_max is None else size_text(each.size_bytes_max),
                time_text(each.expires_ms)
                + (" (over)" if each.is_void(head, time.time_ns() // 1_000_000) else ""),
            )
            for each in holds
        ),
    )


@hold.command()
@stream_argument
@click.argument("hold")
@common_options
@click.pass_obj
def remove(settings: Settings, name: str, hold: str) -> None:
    """Take a hold off; exit status 1 if there is none of that name."""
    with settings.connect_streams() as client, client.stream(name) as stream:
        found = stream.retention.release(hold)
    if settings.as_json:
        print_json({"stream": name, "hold": hold, "removed": found})
    else:
        click.echo(f"hold {hold} is off" if found else f"stream {name} has no hold {hold}")
    if not found:
        click.get_current_context().exit(1)


def hold_fields(hold: Hold) -> dict[str, object]:
    """A hold for scripts."""
    return {
        "hold": hold.name,
        "position": hold.position._asdict(),
        "made_ms": hold.made_ms,
        "expires_ms": hold.expires_ms,
        "bytes_max": hold.size_bytes_max,
    }
