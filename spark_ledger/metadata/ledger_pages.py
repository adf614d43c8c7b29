"""Ledgers by the nodes that list them: ten thousand ids each, so that nobody lists all ledgers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from spark_ledger.metadata.base import MetadataStore, parent_of
from spark_ledger.metadata.ledgers import ledger_path
from spark_ledger.metadata.unsettled import IDS_PER_PAGE, ids_named
from spark_ledger.types import LedgerId


def by_page(ledger_ids: Sequence[LedgerId]) -> list[list[LedgerId]]:
    """Ascending ids, in groups that one node lists."""
    return [list(group) for _, group in groupby(ledger_ids, lambda each: each // IDS_PER_PAGE)]


async def page_of(store: MetadataStore, ledger_id: LedgerId) -> frozenset[LedgerId]:
    """All ledgers in the node that lists this one; none if there is no such node.

    The server that answers may lag.
    """
    names = await store.children(parent_of(ledger_path(ledger_id)))
    return frozenset(ids_named(names, ledger_id // IDS_PER_PAGE))
