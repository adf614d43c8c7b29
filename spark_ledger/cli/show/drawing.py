"""``ledger ledgers show``: a ledger as a picture, and the same as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_ledger.cli.inspection import LedgerPicture
from spark_ledger.cli.show.output import (
    age_text,
    print_rich,
    print_table,
    silence_text,
    size_text,
    time_text,
)
from spark_ledger.cli.show.zones import Safety, Zone, fragments_with_ends, safety_zones
from spark_ledger.stream.ledgers import purpose_of, stream_of

if TYPE_CHECKING:
    from rich.text import Text

BAR_COLUMNS: Final = 60
MARKS: Final = {
    Safety.WRITE_QUORUM: ("█", "green"),
    Safety.ACK_QUORUM: ("▓", "yellow"),
    Safety.BELOW_ACK_QUORUM: ("!", "red"),
    Safety.UNREADABLE: ("X", "bold red"),
    Safety.UNCONFIRMED: ("░", "dim"),
}


def zones_of(picture: LedgerPicture) -> list[Zone]:
    """The safety zones, counting copies at the bookies that answered."""
    holdings = {h.bookie_id: h.ranges for h in picture.holdings if not h.silent}
    return safety_zones(picture.metadata, picture.last_add_confirmed, holdings)


def _last_entry(picture: LedgerPicture, zones: list[Zone]) -> int:
    return zones[-1].last_entry if zones else picture.last_add_confirmed


def ledger_fields(picture: LedgerPicture) -> dict[str, object]:
    """The picture for scripts."""
    metadata, zones = picture.metadata, zones_of(picture)
    return {
        "ledger_id": metadata.ledger_id,
        "state": metadata.state.value,
        "ensemble_size": metadata.quorums.ensemble_size,
        "write_quorum": metadata.quorums.write_quorum,
        "ack_quorum": metadata.quorums.ack_quorum,
        "digest": metadata.digest_type.value,
        "has_password": metadata.has_password,
        "last_add_confirmed": picture.last_add_confirmed,
        "length": metadata.length if metadata.is_closed else None,
        "creation_time_ms": metadata.creation_time_ms,
        "purpose": purpose_of(metadata),
        "stream": stream_of(metadata),
        "owner": metadata.owner,
        "owner_lives": picture.owner is not None,
        "custom_metadata": dict(metadata.custom_metadata),
        "fragments": [
            {"first_entry": first, "last_entry": last, "bookies": list(fragment.bookies)}
            for fragment, first, last in fragments_with_ends(metadata, _last_entry(picture, zones))
        ],
        "zones": [
            {
                "first_entry": zone.first_entry,
                "last_entry": zone.last_entry,
                "safety": zone.safety.name.lower(),
                "copies_min": zone.copies_min,
            }
            for zone in zones
        ],
        "bookies": [
            {
                "bookie_id": holding.bookie_id,
                "ranges": [list(pair) for pair in holding.ranges],
                "last_add_confirmed": holding.last_add_confirmed,
                "fenced": holding.fenced,
                "silent": holding.silent,
                "unbelieved": holding.unbelieved,
            }
            for holding in picture.holdings
        ],
    }


def draw_ledger(picture: LedgerPicture) -> None:
    """Print the picture."""
    metadata, zones = picture.metadata, zones_of(picture)
    facts = [
        f"ledger {metadata.ledger_id}",
        metadata.state.value,
        str(metadata.quorums),
        metadata.digest_type.value,
        f"last add confirmed {picture.last_add_confirmed}",
    ]
    if metadata.is_closed:
        facts.append(size_text(metadata.length))
    if metadata.creation_time_ms:
        created = time_text(metadata.creation_time_ms)
        facts.append(f"created {created}, {age_text(metadata.creation_time_ms)} ago")
    print_rich(" · ".join(facts))
    print_rich(" · ".join(_belonging(picture)))
    for key, value in sorted(metadata.custom_metadata.items()):
        print_rich(f"  {key} = {value}", style="dim")

    print_rich("\nFragments", style="bold")
    silent = {h.bookie_id for h in picture.holdings if h.silent}
    bookies = [f"index {index}" for index in range(metadata.quorums.ensemble_size)]
    print_table(
        ("first#", "last#", *bookies),
        (
            (
                first,
                last if last >= first else "",
                *(_bookie(b, b in silent) for b in fragment.bookies),
            )
            for fragment, first, last in fragments_with_ends(metadata, _last_entry(picture, zones))
        ),
    )
    print_rich("\nSafety", style="bold")
    if zones:
        print_rich(_bar(zones))
        print_table(
            ("", "first#", "last#", "entries#", "copies#", "zone"), [_zone_row(z) for z in zones]
        )
    else:
        print_rich("no entries")
    for holding in picture.holdings:
        if holding.silent:
            print_rich(silence_text(holding.bookie_id, holding.silent), style="red")
        if holding.unbelieved:
            print_rich(f"{holding.bookie_id} is not believed: {holding.unbelieved}", style="red")


def _belonging(picture: LedgerPicture) -> list[str]:
    """What the ledger is for, and whose it is."""
    metadata, owner = picture.metadata, picture.owner
    facts = [f"purpose {purpose_of(metadata)}"]
    if stream_of(metadata):
        facts.append(f"stream {stream_of(metadata)}")
    if owner is not None:
        facts.append(f"owner {owner.owner}: process {owner.pid} on {owner.host}")
    elif metadata.owner:
        facts.append(f"owner {metadata.owner}: gone")
    return facts


def _bookie(bookie_id: str, is_silent: bool) -> str:
    return f"{bookie_id} (silent)" if is_silent else bookie_id


def _zone_row(zone: Zone) -> tuple[object, ...]:
    mark, _ = MARKS[zone.safety]
    count = zone.last_entry - zone.first_entry + 1
    return (mark, zone.first_entry, zone.last_entry, count, zone.copies_min, zone.safety.value)


def _bar(zones: list[Zone]) -> Text:
    """All entries from left to right; a zone has at least one column, so none is hidden."""
    from rich.text import Text

    total = zones[-1].last_entry + 1
    bar = Text()
    for zone in zones:
        mark, style = MARKS[zone.safety]
        share = (zone.last_entry - zone.first_entry + 1) / total
        bar.append(mark * max(1, round(share * BAR_COLUMNS)), style=style)
    return bar
