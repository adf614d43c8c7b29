"""What a cluster holds at one moment, counted in its metadata."""

from __future__ import annotations

from typing import NamedTuple

from spark_ledger.errors import NoSuchStreamError
from spark_ledger.metadata.base import SizedStore
from spark_ledger.metadata.ledgers import LEDGERS_PATH
from spark_ledger.metadata.owners import OWNERS_PATH
from spark_ledger.metadata.unsettled import OPEN_PATH, UNNAMED_PATH, pages
from spark_ledger.stream.nodes import StreamNodes


class Sample(NamedTuple):
    """One look."""

    seconds: float
    kills: int
    commits: int
    ledgers: int
    open: int
    unnamed: int
    owners: int
    nodes: int
    """Of ZooKeeper in all."""

    @property
    def other_nodes(self) -> int:
        """Nodes that are not ledgers, which hold data and stay."""
        return self.nodes - self.ledgers


async def look(store: SizedStore, stream: str, seconds: float, kills: int) -> Sample:
    """Count."""

    async def count(root: str) -> int:
        return sum([len(page.ids) async for page in pages(store, root)])

    try:
        commits = (await StreamNodes(store, stream).head()).value.next_commit
    except NoSuchStreamError:
        commits = 0
    size = await store.size()
    return Sample(
        seconds=round(seconds, 1),
        kills=kills,
        commits=commits,
        ledgers=await count(LEDGERS_PATH),
        open=await count(OPEN_PATH),
        unnamed=await count(UNNAMED_PATH),
        owners=len(await store.children(OWNERS_PATH)),
        nodes=size.nodes or 0,
    )
