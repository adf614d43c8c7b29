"""``ledger ledgers``: list, show, create, append, read, tail, recover, delete."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, BinaryIO, Final

import click

from spark_ledger.cli.arguments.amounts import LEDGER_ID, count_from, number_from
from spark_ledger.cli.arguments.settings import (
    Command,
    Settings,
    common_options,
    password_option,
    standard_input,
)
from spark_ledger.cli.show.output import (
    age_text,
    payload_fields,
    print_json,
    print_table,
    progress,
    size_text,
    time_text,
)
from spark_ledger.errors import CorruptionError, MetadataRestoredError
from spark_ledger.limits import KIB
from spark_ledger.stream.ledgers import purpose_of, stream_of
from spark_ledger.types import Entry, LedgerId, LedgerMetadata

if TYPE_CHECKING:
    from spark_ledger.cli.inspection import LedgerRow
    from spark_ledger.client.blocking import LedgerConnection
    from spark_ledger.client.blocking_writer import BlockingWriter

BATCHES_IN_FLIGHT_MAX: Final = 1000
"""Futures kept at once; the bytes in flight are bounded by the writer itself."""

_BATCH_ENTRIES, _BATCH_BYTES = 200, 64 * KIB
"""Of what is appended together: enough that the cost of a batch does not count."""


@click.group()
def group() -> None:
    """Look at, write, read and repair ledgers."""


ledger_argument = click.argument("ledger_id", type=LEDGER_ID)


def creation_options(command: Command) -> Command:
    """How a new ledger is replicated, and what it carries."""
    options = (
        click.option("--ensemble", default=3, show_default=True, help="Bookies at a time (E)."),
        click.option(
            "--write-quorum", default=3, show_default=True, help="Copies of an entry (WQ)."
        ),
        click.option(
            "--ack-quorum", default=2, show_default=True, help="Copies that confirm it (AQ)."
        ),
        click.option("--meta", multiple=True, metavar="KEY=VALUE", help="Custom metadata."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def custom_metadata(pairs: tuple[str, ...]) -> dict[str, str]:
    """``--meta`` values as a mapping."""
    result = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint="--meta")
        result[key] = value
    return result


@group.command("list")
@common_options
@click.pass_obj
def list_ledgers(settings: Settings) -> None:
    """List all ledgers; exit status 1 if the metadata of one cannot be read."""
    from spark_ledger.cli.inspection import LedgerRow, UnknownLedger, all_ledgers

    with progress("reading metadata", None) as advance:
        rows = all_ledgers(settings.uri(), advance)
    found = [each for each in rows if isinstance(each, LedgerRow)]
    if settings.as_json:
        print_json([summary(metadata, owner_lives=lives) for metadata, lives in found])
    else:
        _print_ledgers(found)
    unknown = [each for each in rows if isinstance(each, UnknownLedger)]
    for each in unknown:
        click.echo(f"unknown: ledger {each.ledger_id} is not in this list: {each.why}", err=True)
    click.get_current_context().exit(1 if unknown else 0)


def _print_ledgers(found: Iterable[LedgerRow]) -> None:
    print_table(
        (
            *("ledger#", "state", "replication", "entries#", "size#", "fragments#"),
            *("purpose", "stream", "owner", "age#", "created"),
        ),
        (
            (
                metadata.ledger_id,
                metadata.state.value,
                metadata.quorums,
                metadata.last_entry_id + 1 if metadata.is_closed else "",
                size_text(metadata.length) if metadata.is_closed else "",
                len(metadata.fragments),
                purpose_of(metadata),
                stream_of(metadata),
                owner_text(metadata.owner, lives=lives),
                age_text(metadata.creation_time_ms),
                time_text(metadata.creation_time_ms),
            )
            for metadata, lives in found
        ),
    )


def summary(metadata: LedgerMetadata, *, owner_lives: bool) -> dict[str, object]:
    """A ledger in the JSON of ``list``; the end is unknown (null) while it is open."""
    return {
        "ledger_id": metadata.ledger_id,
        "state": metadata.state.value,
        "ensemble_size": metadata.quorums.ensemble_size,
        "write_quorum": metadata.quorums.write_quorum,
        "ack_quorum": metadata.quorums.ack_quorum,
        "last_entry": metadata.last_entry_id if metadata.is_closed else None,
        "length": metadata.length if metadata.is_closed else None,
        "fragments": len(metadata.fragments),
        "creation_time_ms": metadata.creation_time_ms,
        "purpose": purpose_of(metadata),
        "stream": stream_of(metadata),
        "owner": metadata.owner,
        "owner_lives": owner_lives,
        "custom_metadata": dict(metadata.custom_metadata),
    }


def owner_text(owner: str, *, lives: bool) -> str:
    """Who owns a ledger; ledgers of older versions name nobody."""
    return f"{owner} ({'alive' if lives else 'gone'})" if owner else ""


@group.command()
@ledger_argument
@common_options
@click.pass_obj
def show(settings: Settings, ledger_id: int) -> None:
    """Draw the fragments of a ledger and how safe its entries are."""
    from spark_ledger.cli.inspection import inspect_ledger
    from spark_ledger.cli.show.drawing import draw_ledger, ledger_fields

    picture = inspect_ledger(settings.uri(), ledger_id)
    if settings.as_json:
        print_json(ledger_fields(picture))
    else:
        draw_ledger(picture)


@group.command()
@creation_options
@password_option
@click.option("--leave-open", is_flag=True, help="Do not close it, as a writer that died would.")
@common_options
@click.pass_obj
def create(
    settings: Settings,
    ensemble: int,
    write_quorum: int,
    ack_quorum: int,
    meta: tuple[str, ...],
    password: bytes,
    leave_open: bool,
) -> None:
    """Create an empty ledger. A ledger has one writer: to add entries, use append."""
    with settings.connect() as client:
        writer = client.create_ledger(
            ensemble_size=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            password=password,
            custom_metadata=custom_metadata(meta),
        )
        if not leave_open:
            writer.close()
        if settings.as_json:
            print_json({"ledger_id": writer.ledger_id, "closed": not leave_open})
        else:
            click.echo(writer.ledger_id)


@group.command()
@click.argument("payload", nargs=-1)
@click.option("--file", "file", type=click.File("rb"), help="Read entries from a file (-: stdin).")
@click.option(
    "--entry-bytes",
    type=count_from(1),
    help="Cut the input into entries of this size instead of lines.",
)
@creation_options
@password_option
@common_options
@click.pass_obj
def append(
    settings: Settings,
    payload: tuple[str, ...],
    file: BinaryIO | None,
    entry_bytes: int | None,
    ensemble: int,
    write_quorum: int,
    ack_quorum: int,
    meta: tuple[str, ...],
    password: bytes,
) -> None:
    """Create a ledger, append entries to it and close it.

    Each PAYLOAD is an entry; without any, each line of the file or of standard input is one.
    """
    if payload and file:
        raise click.UsageError("give PAYLOADs or --file, not both")
    payloads: Iterator[bytes]
    if payload:  # any bytes, as the shell gave them
        payloads = (text.encode(errors="surrogateescape") for text in payload)
        at_once = _BATCH_ENTRIES
    else:
        source = file or standard_input()
        payloads = pieces(source, entry_bytes)
        # What comes through a pipe is appended as it comes: nothing waits for the line behind it.
        at_once = _BATCH_ENTRIES if source.seekable() else 1
    with (
        settings.connect() as client,
        client.create_ledger(
            ensemble_size=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            password=password,
            custom_metadata=custom_metadata(meta),
        ) as writer,
    ):
        entries, size_bytes = append_all(writer, payloads, len(payload) or None, at_once)
    if settings.as_json:
        fields = {"ledger_id": writer.ledger_id, "entries": entries, "bytes": size_bytes}
        print_json(fields)
    else:
        click.echo(f"ledger {writer.ledger_id}: {entries} entries, {size_text(size_bytes)}")


def pieces(source: BinaryIO, entry_bytes: int | None) -> Iterator[bytes]:
    """The input as lines without their ends, or as pieces of one size (the last may be shorter)."""
    if entry_bytes is None:
        yield from (line.rstrip(b"\r\n") for line in source)
        return
    while piece := source.read(entry_bytes):
        yield piece


def append_all(
    writer: BlockingWriter, payloads: Iterable[bytes], total: int | None, at_once: int
) -> tuple[int, int]:
    """Append everything with many adds in flight; (entries, bytes) once all are confirmed."""
    pending: deque[Future[range]] = deque()
    entries = size_bytes = 0
    with progress("appending", total) as advance:
        for batch in _batches(payloads, at_once):
            if len(pending) >= BATCHES_IN_FLIGHT_MAX:
                advance(len(pending.popleft().result()))
            pending.append(writer.append_many_async(batch))
            entries += len(batch)
            size_bytes += sum(map(len, batch))
        for future in pending:
            advance(len(future.result()))
    return entries, size_bytes


def _batches(payloads: Iterable[bytes], at_once: int) -> Iterator[list[bytes]]:
    """The payloads in their order, so many at a time: to append them singly costs twice as much."""
    batch: list[bytes] = []
    size_bytes = 0
    for payload in payloads:
        if batch and size_bytes + len(payload) > _BATCH_BYTES:
            yield batch
            batch, size_bytes = [], 0
        batch.append(payload)
        size_bytes += len(payload)
        if len(batch) == at_once:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch


class EntryPrinter:
    """Prints entries as text, hexadecimal or JSON lines, each as soon as it is there."""

    def __init__(self, *, as_json: bool, as_hex: bool) -> None:
        self._as_json = as_json
        self._as_hex = as_hex

    def __call__(self, entry: Entry) -> None:
        if self._as_json:
            print_json({"entry_id": entry.entry_id, **payload_fields(entry.payload)})
        elif self._as_hex:
            click.echo(f"{entry.entry_id} {entry.payload.hex()}")
        else:
            click.echo(entry.payload)


hex_option = click.option("--hex", "as_hex", is_flag=True, help="Print entry id and hexadecimal.")


@group.command()
@ledger_argument
@click.option("--first", default=0, type=count_from(0), help="The first entry, counted from 0.")
@click.option(
    "--last",
    type=count_from(0),
    help="The last entry; by default the ledger's.",
)
@hex_option
@password_option
@common_options
@click.pass_obj
def read(
    settings: Settings, ledger_id: int, first: int, last: int | None, as_hex: bool, password: bytes
) -> None:
    """Print the payloads of a ledger's confirmed entries."""
    with settings.connect() as client, client.open_ledger(ledger_id, password=password) as reader:
        end = reader.last_add_confirmed if last is None else last
        if end < first:
            if last is not None:
                raise click.UsageError(f"--last {last} is before --first {first}")
            return  # nothing is confirmed from here on
        printer = EntryPrinter(as_json=settings.as_json, as_hex=as_hex)
        for entry in reader.read(first, end):
            printer(entry)


@group.command()
@ledger_argument
@click.option("--start", default=0, type=count_from(0), help="The first entry, counted from 0.")
@click.option(
    "--idle-timeout", type=number_from(), help="Stop after this many seconds without an entry."
)
@hex_option
@password_option
@common_options
@click.pass_obj
def tail(
    settings: Settings,
    ledger_id: int,
    start: int,
    idle_timeout: float | None,
    as_hex: bool,
    password: bytes,
) -> None:
    """Print entries as they are confirmed, until the ledger is closed."""
    printer = EntryPrinter(as_json=settings.as_json, as_hex=as_hex)
    with settings.connect() as client, client.open_ledger(ledger_id, password=password) as reader:
        for entry in reader.tail(start=start, idle_timeout=idle_timeout):
            printer(entry)


@group.command()
@ledger_argument
@password_option
@common_options
@click.pass_obj
def recover(settings: Settings, ledger_id: int, password: bytes) -> None:
    """Stop the writer of a ledger, find its last entry and close it there."""
    with (
        settings.connect() as client,
        progress(f"recovering ledger {ledger_id}", None),
        client.open_ledger(ledger_id, recover=True, password=password) as reader,
    ):
        last = reader.last_add_confirmed
    if settings.as_json:
        print_json({"ledger_id": ledger_id, "state": "closed", "last_entry": last})
    else:
        click.echo(f"ledger {ledger_id} is closed; last entry {last}")


@group.command()
@click.argument("ledger_ids", nargs=-1, required=True, type=LEDGER_ID)
@click.option(
    "--damaged",
    is_flag=True,
    help="Only such whose metadata cannot be read, as they are damaged.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@common_options
@click.pass_obj
def delete(settings: Settings, ledger_ids: tuple[int, ...], damaged: bool, yes: bool) -> None:
    """Delete ledgers for good."""
    question = f"Delete {len(ledger_ids)} ledger(s) for good?"
    if damaged:
        question += " Nobody can tell whose they are: a stream that names one loses what it holds."
    confirm(yes, question)
    if damaged:
        from spark_ledger.cli.damaged import delete_damaged

        with progress("deleting", len(ledger_ids)) as advance:
            delete_damaged(settings.uri(), map(LedgerId, ledger_ids), advance)
    else:
        with settings.connect() as client, progress("deleting", len(ledger_ids)) as advance:
            for ledger_id in ledger_ids:
                _check_readable(client, ledger_id)
                client.delete_ledger(ledger_id)
                advance()
    if settings.as_json:
        print_json({"deleted": list(ledger_ids)})


def _check_readable(client: LedgerConnection, ledger_id: int) -> None:
    """Raises for a wrong id, and for a ledger that another may need: deleting would not."""
    try:
        client.ledger_metadata(ledger_id)
    except MetadataRestoredError:
        raise
    except CorruptionError as error:
        raise CorruptionError(
            f"{error}. Nobody can tell what ledger {ledger_id} holds; if it is to go all the same: "
            f"ledger ledgers delete --damaged {ledger_id}"
        ) from error


def confirm(yes: bool, question: str) -> None:
    """Ask before destruction; a script must say --yes."""
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():  # None if the shell has closed it
        raise click.UsageError("there is no terminal to ask at: add --yes if you are sure")
    click.confirm(question, abort=True, err=True)
