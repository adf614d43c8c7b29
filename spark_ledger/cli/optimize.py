"""``ledger streams optimize``: copy the small segments of old commits into few large entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spark_ledger.cli.arguments.amounts import count_from, size_of
from spark_ledger.cli.arguments.settings import Settings, common_options
from spark_ledger.cli.show.output import print_json, print_table, progress, size_text
from spark_ledger.limits.stream import PACKED_ENTRIES_MIN
from spark_ledger.stream.model import ENTRY_BYTES_MIN

if TYPE_CHECKING:
    from spark_ledger.stream.packs.optimizer import Packed


@click.command()
@click.argument("name")
@click.option(
    "--entry-bytes",
    type=size_of(ENTRY_BYTES_MIN),
    metavar="SIZE",
    help="Size of a pack's entries, before compression. [default: the stream's]",
)
@click.option(
    "--pack-bytes",
    type=size_of(ENTRY_BYTES_MIN),
    metavar="SIZE",
    help="Payload of one pack, about. [default: the size at which the stream's ledgers end]",
)
@click.option(
    "--min-entries",
    type=count_from(1),
    default=PACKED_ENTRIES_MIN,
    show_default=True,
    help="Leave fewer small entries in a row as they are.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be packed, and write nothing.")
@common_options
@click.pass_obj
def optimize(
    settings: Settings,
    name: str,
    entry_bytes: float | None,
    pack_bytes: float | None,
    min_entries: int,
    dry_run: bool,
) -> None:
    """Copy small commits into large entries, so that they are read faster.

    Rows, positions and commits stay as they are. Once an hour the keeper packs what has come since.
    It deletes the former ledgers two days later (replaced_grace_s of the keeper): until then
    backups of the metadata store may name them, and packed rows are on the disks twice.
    """
    with (
        settings.connect_streams() as client,
        client.stream(name) as stream,
        progress(f"optimizing {name}", stream.head().rows) as advance,
    ):
        done = 0

        def on_progress(rows: int, total: int) -> None:
            nonlocal done
            advance(rows - done)
            done = rows if rows < total else 0

        packed = stream.optimize(
            entry_bytes=None if entry_bytes is None else int(entry_bytes),
            pack_bytes=None if pack_bytes is None else int(pack_bytes),
            entries_min=min_entries,
            dry_run=dry_run,
            progress=on_progress,
        )
    if settings.as_json:
        print_json([_fields(each) for each in packed])
    elif not packed:
        click.echo(f"stream {name}: nothing to pack; no {min_entries} small entries in a row")
    else:
        print_table(
            ("commits", "segments#", "rows#", "size#", "entries#", "packed into#", "ledger#"),
            (
                (
                    f"{each.first}..{each.first + each.commits - 1}",
                    each.segments,
                    each.rows,
                    size_text(each.size_bytes),
                    each.former_entries,
                    "" if each.pack is None else each.pack.entries,
                    "" if each.pack is None else each.pack.ledger_id,
                )
                for each in packed
            ),
        )


def _fields(packed: Packed) -> dict[str, object]:
    """Commits that were packed, for scripts."""
    pack = packed.pack
    return {
        "first_commit": packed.first,
        "commits": packed.commits,
        "segments": packed.segments,
        "rows": packed.rows,
        "bytes": packed.size_bytes,
        "former_entries": packed.former_entries,
        "packed": pack is not None,
        "entries": None if pack is None else pack.entries,
        "packed_bytes": None if pack is None else pack.size_bytes,
        "ledger_id": None if pack is None else pack.ledger_id,
    }
