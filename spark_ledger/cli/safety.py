"""How safe what a cluster has confirmed is, from what bookies say they hold; see ``ledger cluster
status``.

All ledgers are looked at, page by page, and only sums are kept. A ledger that changes while it is
looked at is looked at again: a copy that was moved meanwhile is not a copy that is missing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from spark_ledger.cli.ends import believed_end
from spark_ledger.cli.listing import HeldEntries, fetch_to_same_end
from spark_ledger.cli.show.zones import Safety, Zone, add_zones, safety_zones
from spark_ledger.errors import ConfigurationError, CorruptionError, NotFoundError
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.cluster import read_cluster_node
from spark_ledger.metadata.codec import decode_ledger
from spark_ledger.metadata.ledgers import LEDGERS_PATH, ledger_path
from spark_ledger.metadata.unsettled import pages
from spark_ledger.repair.plan import all_names, misplaced
from spark_ledger.transport.base import ListedEntries, Transport
from spark_ledger.types import (
    BookieId,
    BookieStatus,
    EntryId,
    LedgerId,
    LedgerMetadata,
    PlacementPolicy,
    Versioned,
)

ANSWER_TIMEOUT_S: Final = 5.0
"""A bookie that does not answer within this counts as silent, and is asked no more."""

BUSY_PAUSE_S: Final = 0.1
BUSY_ATTEMPTS_MAX: Final = 300
"""A bookie that is busy decides nothing: it is asked again, for half a minute."""

LEDGERS_AT_ONCE: Final = 32
"""Ledgers that are looked at at once: some questions wait for each bookie, and it serves others."""

LOOKS_MAX: Final = 5
"""A ledger that changes during each of so many looks is counted as the last one found it."""

WORST_TOLD_MAX: Final = 20
"""Ledgers that are named, of those that are not as safe as they should be; all are counted."""


@dataclass(slots=True)
class Tally:
    """Sums over ledgers."""

    ledgers: int = 0
    entries: int = 0
    user_bytes: int = 0
    """Of closed ledgers, whose entries count as all of one size; an open one's are not known."""


@dataclass(slots=True)
class Standing:
    """A cluster."""

    zones: dict[Safety, Tally] = field(default_factory=lambda: {each: Tally() for each in Safety})
    """Entries by their safety. A ledger counts once, where its worst confirmed entry is."""
    under_way: int = 0
    """Confirmed entries below WQ in fragments that a writer still writes: their last copies are
    on the way, or its next add has it replace the bookie (rule P9)."""
    ledgers: int = 0
    open: int = 0
    misplaced: Tally = field(default_factory=Tally)
    """Of fragments whose bookies do not adhere to the placement policy, as far as racks are
    known."""
    bookies: dict[BookieId, str] = field(default_factory=dict)
    """Each bookie's state; "down": it is not registered."""
    silent: dict[BookieId, str] = field(default_factory=dict)
    """Bookies that gave no answer, or list what cannot be: their copies are not counted."""
    unbelieved: dict[BookieId, str] = field(default_factory=dict)
    """Bookies that name an end which cannot be, and which one; their copies are counted."""
    worst: list[tuple[LedgerId, Safety]] = field(default_factory=list)
    """The first ledgers with a confirmed entry below AQ."""
    unknown: int = 0
    """Ledgers whose nodes are damaged or of a later format: nobody can say how safe they are."""
    unknown_why: str = ""
    """Of the first one."""

    @property
    def at_risk(self) -> int:
        """Confirmed entries with fewer than AQ copies, or none."""
        return self.zones[Safety.BELOW_ACK_QUORUM].entries + self.zones[Safety.UNREADABLE].entries

    @property
    def lacking(self) -> int:
        """Confirmed entries below WQ whose copies nobody but repair will make."""
        return self.zones[Safety.ACK_QUORUM].entries + self.at_risk - self.under_way


async def survey(
    store: MetadataStore, transport: Transport, advance: Callable[[int], None]
) -> Standing:
    """Ask all bookies what they hold of all ledgers. ``advance`` hears of ledgers looked at.

    Raises what the metadata store raises.
    """
    return await _Survey(store, transport, advance).run()


class _Survey:
    def __init__(
        self, store: MetadataStore, transport: Transport, advance: Callable[[int], None]
    ) -> None:
        self._store = store
        self._transport = transport
        self._advance = advance
        self._found = Standing()
        self._policy = PlacementPolicy()
        self._racks: dict[BookieId, str] = {}

    async def run(self) -> Standing:
        self._policy = (await read_cluster_node(self._store)).value.policy
        registry = BookieRegistry(self._store)
        states = dict.fromkeys(await registry.list_cookies(), "down")
        for info in await registry.list():
            states[info.bookie_id] = info.state.value
            self._racks[info.bookie_id] = info.rack
        self._found.bookies = dict(sorted(states.items()))
        async for page in pages(self._store, LEDGERS_PATH):
            for start in range(0, len(page.ids), LEDGERS_AT_ONCE):
                part = page.ids[start : start + LEDGERS_AT_ONCE]
                await asyncio.gather(*map(self._look, part))
                self._advance(len(part))
        return self._found

    async def _look(self, ledger_id: LedgerId) -> None:
        ledger = await self._read(ledger_id)
        if ledger is None:
            return  # deleted since it was listed
        for _ in range(LOOKS_MAX):
            before = ledger
            confirmed, zones = await self._zones(before.value)
            if all(each.safety in _WELL for each in zones):
                break  # whatever changed: the copies are there
            ledger = await self._read(ledger_id)
            if ledger is None:
                return  # deleted meanwhile, also in the last look
            if ledger.version == before.version:
                break
        self._count(before.value, confirmed, zones)

    async def _read(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata] | None:
        path = ledger_path(ledger_id)
        try:
            node = await self._store.get(path)
        except NotFoundError:
            return None
        try:
            return Versioned(decode_ledger(path, ledger_id, node.value), node.version)
        except (CorruptionError, ConfigurationError) as error:
            self._found.unknown += 1
            self._found.unknown_why = self._found.unknown_why or str(error)
            return None

    async def _zones(self, ledger: LedgerMetadata) -> tuple[int, list[Zone]]:
        """The last confirmed entry, as far as its bookies are to be believed, and the zones up to
        it.

        An open ledger's end is asked first: entries that are confirmed at that time are held by
        their ack quorum when the bookies list what they hold.
        """
        names = sorted(all_names(ledger))
        confirmed = ledger.last_entry_id if ledger.is_closed else await self._end(ledger)
        silence = self._found.silent.setdefault
        held = {
            each: HeldEntries(
                partial(self._held, each, ledger.ledger_id), confirmed, partial(silence, each)
            )
            for each in names
        }
        zones: list[Zone] = []
        start: int | None = 0
        while start is not None:
            end = await fetch_to_same_end(list(held.values()), start)
            taken = {name: await each.take(end) for name, each in held.items()}
            add_zones(zones, safety_zones(ledger, confirmed, taken, start, end))
            start = end
        return confirmed, zones

    async def _end(self, ledger: LedgerMetadata) -> int:
        silent = self._found.silent
        asked = [each for each in ledger.last_fragment.bookies if each not in silent]
        ends = await asyncio.gather(
            *(
                self._transport.read_last_confirmed(
                    bookie_id, ledger.ledger_id, timeout_s=ANSWER_TIMEOUT_S
                )
                for bookie_id in asked
            )
        )
        said = dict(zip(asked, ends, strict=True))
        return await believed_end(
            self._transport, ledger, said, ANSWER_TIMEOUT_S, self._found.unbelieved.setdefault
        )

    async def _held(
        self, bookie_id: BookieId, ledger_id: LedgerId, first: EntryId
    ) -> ListedEntries:
        """A page; without a range if the bookie does not say what it holds."""
        status = BookieStatus.UNAVAILABLE
        for _ in range(BUSY_ATTEMPTS_MAX):
            if bookie_id in self._found.silent:
                return ListedEntries(BookieStatus.UNAVAILABLE, [])
            page = await self._transport.list_entries(
                bookie_id, ledger_id, first, timeout_s=ANSWER_TIMEOUT_S
            )
            status = page.status
            if status is BookieStatus.OK:
                return page
            if status is not BookieStatus.TOO_MANY_REQUESTS:
                break
            await asyncio.sleep(BUSY_PAUSE_S)
        if not status.is_denial and status is not BookieStatus.IO_ERROR:  # that is of this ledger
            self._found.silent.setdefault(bookie_id, status.name.lower())
        return ListedEntries(status, [])

    def _count(self, ledger: LedgerMetadata, confirmed: int, zones: Sequence[Zone]) -> None:
        found = self._found
        found.ledgers += 1
        found.open += not ledger.is_closed
        each_bytes = 0.0
        if ledger.is_closed and ledger.last_entry_id >= 0:
            each_bytes = ledger.length / (ledger.last_entry_id + 1)
        entries: Counter[Safety] = Counter()
        settled = confirmed if ledger.is_closed else ledger.last_fragment.first_entry - 1
        for zone in zones:
            entries[zone.safety] += zone.last_entry - zone.first_entry + 1
            if zone.safety not in _WELL:
                found.under_way += max(0, zone.last_entry - max(zone.first_entry - 1, settled))
        for safety, count in entries.items():
            found.zones[safety].entries += count
            found.zones[safety].user_bytes += round(count * each_bytes)
        worst = max((each for each in entries if each in _RANKS), key=_RANKS.index, default=None)
        found.zones[worst or Safety.WRITE_QUORUM].ledgers += 1
        if worst in _AT_RISK and len(found.worst) < WORST_TOLD_MAX:
            found.worst.append((ledger.ledger_id, worst))
        self._count_misplaced(ledger, confirmed, each_bytes)

    def _count_misplaced(self, ledger: LedgerMetadata, confirmed: int, each_bytes: float) -> None:
        wrong = misplaced(ledger, self._racks, self._policy, confirmed)
        count = sum(max(0, each.last + 1 - each.first) for each in wrong)
        self._found.misplaced.ledgers += bool(wrong)
        self._found.misplaced.entries += count
        self._found.misplaced.user_bytes += round(count * each_bytes)


_RANKS: Final = (
    Safety.WRITE_QUORUM,
    Safety.ACK_QUORUM,
    Safety.BELOW_ACK_QUORUM,
    Safety.UNREADABLE,
)
"""What is confirmed, the worst last."""

_WELL: Final = (Safety.WRITE_QUORUM, Safety.UNCONFIRMED)
_AT_RISK: Final = (Safety.BELOW_ACK_QUORUM, Safety.UNREADABLE)


def exit_status(found: Standing) -> int:
    """For scripts: 3 is worse than 1, and 0 is well."""
    if found.at_risk or found.unknown:
        return 3
    return 1 if found.lacking or found.misplaced.ledgers else 0


def fields(found: Standing) -> Mapping[str, object]:
    """For scripts."""
    from dataclasses import asdict

    return {
        "ledgers": found.ledgers,
        "open_ledgers": found.open,
        "zones": {zone.name.lower(): asdict(tally) for zone, tally in found.zones.items()},
        "under_way_entries": found.under_way,
        "lacking_entries": found.lacking,
        "misplaced": asdict(found.misplaced),
        "bookies": found.bookies,
        "silent": found.silent,
        "unbelieved": found.unbelieved,
        "unknown_ledgers": found.unknown,
        "worst": [
            {"ledger_id": ledger_id, "safety": safety.name.lower()}
            for ledger_id, safety in found.worst
        ],
    }
