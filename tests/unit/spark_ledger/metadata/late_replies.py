"""A metadata store whose replies are late: what they say may be out of date when they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from spark_ledger.errors import NotFoundError
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree

R = TypeVar("R")


class LateReplies(MemoryMetadataStore):
    """``on_way`` is called with a question and its path once it was answered ("missing ..." if
    there is no such node). The reply arrives a little later than the news of what changes then."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.on_way: Callable[[str, str], None] = lambda _name, _path: None

    async def _read(self, name: str, path: str, act: Callable[[], R]) -> R:
        try:
            found = await super()._read(name, path, act)
        except NotFoundError:
            await self._arrive(f"missing {name}", path)
            raise
        await self._arrive(name, path)
        return found

    async def _arrive(self, name: str, path: str) -> None:
        self.on_way(name, path)
        for _turn in range(5):
            await asyncio.sleep(0)


def once(name: str, path: str, action: Callable[[], None]) -> Callable[[str, str], None]:
    """Do something while the first reply to one question is on its way."""
    done = False

    def on_way(asked: str, about: str) -> None:
        nonlocal done
        if (asked, about) == (name, path) and not done:
            done = True
            action()

    return on_way
