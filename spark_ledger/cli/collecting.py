"""Has bookies collect their garbage now, and waits for what they say."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_ledger.errors import CorruptionError, NotFoundError
from spark_ledger.types import BookieId

if TYPE_CHECKING:
    from spark_ledger.metadata.base import MetadataStore
    from spark_ledger.metadata.collection import CollectionOrder, PassReport

_LOOK_S: Final = 0.2
"""A watch would be sooner by less than anybody notices."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the bookies shall do."""

    bookies: Sequence[str]
    """Those that are named; empty: all that run."""

    timeout_s: float
    dry_run: bool = False
    share_max: float | None = None
    accept_restored: bool = False
    give_back: bool = False


def collect(uri: str, wanted: Wanted) -> list[tuple[BookieId, PassReport | None]]:
    """How the pass of each bookie went; None for one that has not ended it in time.

    Raises NotFoundError if a bookie that is named does not run.
    """

    async def run() -> list[tuple[BookieId, PassReport | None]]:
        from spark_ledger.metadata.connect import connected_store

        async with connected_store(uri) as store:
            return await order(store, wanted)

    return asyncio.run(run())


async def order(store: MetadataStore, wanted: Wanted) -> list[tuple[BookieId, PassReport | None]]:
    """See ``collect``."""
    from spark_ledger.metadata.bookies import BookieRegistry
    from spark_ledger.metadata.collection import CollectionOrder

    running = {info.bookie_id for info in await BookieRegistry(store).list()}
    missing = sorted(set(wanted.bookies) - running)
    if missing:
        raise NotFoundError(
            f"bookie {missing[0]} is not running: see `ledger bookies list`, and start it"
        )
    one = CollectionOrder(
        token=secrets.token_hex(8),
        dry_run=wanted.dry_run,
        share_max=wanted.share_max,
        accept_restored=wanted.accept_restored,
        give_back=wanted.give_back,
    )
    chosen = [BookieId(name) for name in wanted.bookies or sorted(running)]
    reports = await asyncio.gather(
        *(_order_one(store, bookie_id, one, wanted.timeout_s) for bookie_id in chosen)
    )
    return list(zip(chosen, reports, strict=True))


async def _order_one(
    store: MetadataStore, bookie_id: BookieId, one: CollectionOrder, timeout_s: float
) -> PassReport | None:
    from spark_ledger.metadata.collection import read_collection, write_order

    await write_order(store, bookie_id, one)
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    found = await read_collection(store, bookie_id)
                except CorruptionError as error:
                    if not one.accept_restored:
                        raise CorruptionError(
                            f"{error}; --accept-restored writes it anew"
                        ) from error
                    found = None  # the bookie has not written it yet
                report = found.value.report if found is not None else None
                if report is not None and report.order == one.token:
                    return report
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        return None
