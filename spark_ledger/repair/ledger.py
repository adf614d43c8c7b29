"""Makes the copies of one ledger again: copies, then names, fragment by fragment."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final

from spark_ledger.client.context import ClientContext
from spark_ledger.errors import (
    BookieUnavailableError,
    ConflictError,
    LedgerError,
    NoSuchEntryError,
    NotEnoughBookiesError,
)
from spark_ledger.limits.repair import TARGETS_TRIED_MAX
from spark_ledger.metadata.base import Operation
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.protocol.ensemble import replace_bookies
from spark_ledger.protocol.events import (
    ChooseBookies,
    MetadataFailed,
    MetadataWritten,
    WriteMetadata,
)
from spark_ledger.repair.copying import Access, Copier, TargetFailedError
from spark_ledger.repair.held import HeldPart, held_parts
from spark_ledger.repair.nodes import that_stay
from spark_ledger.repair.plan import (
    FinalFragment,
    LaneCopy,
    all_names,
    final_fragments,
    is_renamed,
    lane_copies,
    lost_indexes,
    renamed,
)
from spark_ledger.repair.throttle import Throttles
from spark_ledger.types import BookieId, LedgerMetadata, Versioned
from spark_ledger.wire.frame import derive_keys, digest_for
from spark_ledger.wire.shown_keys import hash_as_key

logger = logging.getLogger(__name__)

_FAILS_ALONE: Final = (NoSuchEntryError, NotEnoughBookiesError, BookieUnavailableError)
"""What keeps one copy from being made, or one fragment from being repaired."""

_AS_COPIED_S: Final = 1.0
"""For so long nobody asks whether copies are there still. A bookie whose disk is lost may have left
and be formatted under its name after twice that: it is registered, and holds nothing."""

_CONFLICTS_MAX = 100
"""A ledger whose metadata change this often while one change is tried is left to the next turn."""


class LedgerRepair:
    """One ledger; used once."""

    def __init__(
        self,
        context: ClientContext,
        ledger: Versioned[LedgerMetadata],
        copy_key: bytes,
        throttles: Throttles,
        counts: Counter[str],
    ) -> None:
        """``copy_key``: of the lock that is held. ``counts``: gets what was copied."""
        self._context = context
        self._ledger = ledger
        access = _access(ledger.value, copy_key)
        self._mute = throttles.mute
        self._copier = Copier(context, ledger.value.ledger_id, access, throttles, counts)
        self.changed = False
        """Whether the metadata name other bookies now, or a copy was made."""
        self.unknown: set[BookieId] = set()
        """Members that are not lost and may lack entries still: they did not say what they hold,
        or did not take a copy."""
        self.is_settled = False
        """Whether all was done, and ``also`` of ``run`` with it."""
        self._errors: list[LedgerError] = []
        self._copied: dict[int, BookieId] = {}
        """Who has the copies of the lost members of a fragment, and is not named yet."""
        self._also: Callable[[], Sequence[Operation]] = tuple
        self._copying_since = 0.0
        """When the first of the copies began that are not named yet."""

    async def run(
        self, lost: frozenset[BookieId], also: Callable[[], Sequence[Operation]] = tuple
    ) -> Versioned[LedgerMetadata]:
        """Bring each final fragment to WQ copies, on bookies that are not lost; the metadata then.

        ``also``: tells what shall happen once the ledger lacks nothing. If the last change of the
        metadata brings it there, it happens in the transaction of that, see ``is_settled``.

        Raises NotEnoughBookiesError, NoSuchEntryError, BookieUnavailableError, ConflictError and
        what the metadata store raises. What was done by then stays.
        """
        # An auditor in the same process sees thousands of others while a copy is made.
        with self._context.ledgers.keep(self._ledger):
            await self._mend(lost, also)
        if self._errors:
            errors = self._errors
            raise next((e for e in errors if isinstance(e, NoSuchEntryError)), errors[0])
        return self._ledger

    async def _mend(
        self, lost: frozenset[BookieId], also: Callable[[], Sequence[Operation]]
    ) -> None:
        fragments = final_fragments(self._ledger.value)
        for fragment in fragments:
            self._also = also if fragment is fragments[-1] else tuple
            for step in (self._copy_lost, self._refill_others, self._name_copied, self._spread):
                try:
                    await step(fragment, lost)
                except _FAILS_ALONE as error:
                    self._errors.append(error)  # of this fragment: the others are none the worse

    async def _refill_others(self, fragment: FinalFragment, lost: frozenset[BookieId]) -> None:
        members = enumerate(fragment.bookies)
        indexes = [index for index, bookie_id in members if bookie_id not in lost]
        asked = [self._refill(fragment, index, lost) for index in indexes]
        for found in await asyncio.gather(*asked, return_exceptions=True):
            if found is not None:
                raise found

    async def _copy_lost(self, fragment: FinalFragment, lost: frozenset[BookieId]) -> None:
        self._copying_since = asyncio.get_running_loop().time()
        replacements = self._copied  # each is named, also if those behind it cannot be made
        for index in lost_indexes(fragment.bookies, lost):
            try:
                replacements[index] = await self._replace(fragment, index, lost, replacements)
            except _FAILS_ALONE as error:
                self._errors.append(error)

    async def _name_copied(self, fragment: FinalFragment, lost: frozenset[BookieId]) -> None:
        copied, self._copied = self._copied, {}
        if copied:
            await self._rename(fragment, copied, lost)

    async def _spread(self, fragment: FinalFragment, lost: frozenset[BookieId]) -> None:
        """Move copies so that the fragment adheres to the placement policy, if that can be. The
        fewest move, and each is named where it was until it is synced elsewhere (rule R15)."""
        if lost.intersection(fragment.bookies):
            return  # these were replaced a moment ago, in good racks
        quorums = self._ledger.value.quorums
        await self.move(fragment, self._context.moves(fragment.bookies, quorums, lost), lost)

    async def move(
        self,
        fragment: FinalFragment,
        targets: Mapping[int, BookieId],
        lost: frozenset[BookieId] = frozenset(),
    ) -> bool:
        """Copy what these indexes have to hold to other bookies, and name those; whether they are
        named. Raises as ``run``.

        A new one is asked what it holds before it is named: the copy that it replaces is good, and
        counts no more then (rule R16).
        """
        self._copying_since = asyncio.get_running_loop().time()
        with self._context.ledgers.keep(self._ledger):
            for index, target in targets.items():
                lanes = lane_copies(self._ledger.value, fragment, index, lost=lost)
                try:
                    await self._copy(lanes, target)
                    await self._refuse_holes(lanes, target)
                except TargetFailedError as error:
                    logger.info("ledger %d: %s", self._ledger.value.ledger_id, error)
                    self.unknown.add(target)
                    return False
            if targets:
                await self._rename(fragment, targets, lost)
        return bool(targets)

    async def _ask_again(
        self,
        fragment: FinalFragment,
        replacements: Mapping[int, BookieId],
        lost: frozenset[BookieId],
    ) -> None:
        """Raises BookieUnavailableError unless the new bookies hold all still that they shall be
        named for.

        Then the mark stays, and a later turn copies anew.
        """
        for index, target in replacements.items():
            lanes = lane_copies(self._ledger.value, fragment, index, lost=lost)
            try:
                await self._refuse_holes(lanes, target)
            except TargetFailedError as error:
                message = f"ledger {self._ledger.value.ledger_id}: {error}"
                raise BookieUnavailableError(message) from error

    async def _refuse_holes(self, lanes: Sequence[LaneCopy], target: BookieId) -> None:
        """Raises TargetFailedError unless the bookie says that it holds all of this (rule R16)."""
        async for part in self._held_parts(lanes, target):
            if part.ranges is None or part.missing(lanes):
                raise TargetFailedError(f"bookie {target} does not say that it holds its copies")

    async def _refill(self, fragment: FinalFragment, index: int, lost: frozenset[BookieId]) -> None:
        """Bring a member that is there what it lacks (rule R8). Of what it has just sent whole it
        lacks nothing."""
        target = fragment.bookies[index]
        lanes = [
            lane
            for lane in lane_copies(self._ledger.value, fragment, index, lost=lost)
            if not self._copier.was_brought(lane, target)
        ]
        if lanes and target in self._mute:
            self.unknown.add(target)
            return
        lost_entry: NoSuchEntryError | None = None
        async for part in self._held_parts(lanes, target):
            if part.ranges is None:
                if part.timed_out:
                    self._mute.note(target)
                self.unknown.add(target)  # it may hold all
                break
            try:
                await self._copy(part.missing(lanes), target)
            except NoSuchEntryError as error:  # what lies behind it is there
                lost_entry = lost_entry or error
            except TargetFailedError as error:
                logger.info("%s", error)
                self.unknown.add(target)
                break
        if lost_entry is not None:
            raise lost_entry

    def _held_parts(
        self, lanes: Sequence[LaneCopy], bookie_id: BookieId
    ) -> AsyncIterator[HeldPart]:
        """What a bookie says that it holds of the ledger, from the first entry of lanes to the
        last one."""
        return held_parts(
            self._context.transport,
            bookie_id,
            self._ledger.value.ledger_id,
            min((lane.first for lane in lanes), default=0),
            max((lane.last_entry for lane in lanes), default=-1),
            timeout_s=self._context.config.read_timeout_s,
        )

    async def _replace(
        self,
        fragment: FinalFragment,
        index: int,
        lost: frozenset[BookieId],
        others: dict[int, BookieId],
    ) -> BookieId:
        """Copy what an index has to hold to a bookie that is not in the fragment; that bookie."""
        lanes = lane_copies(self._ledger.value, fragment, index, lost=lost)
        refused: set[BookieId] = set()
        for _ in range(TARGETS_TRIED_MAX):
            members = frozenset(fragment.bookies) | lost | refused | set(others.values())
            ensemble = replace_bookies(fragment.bookies, others)
            left = [i for i in lost_indexes(ensemble, lost) if i != index]  # of these, too, soon
            quorums = self._ledger.value.quorums
            chosen = await self._context.replacements(
                ChooseBookies((index, *left), members, {}, {}, ensemble=ensemble, quorums=quorums)
            )
            if index not in chosen.replacements:
                break
            target = chosen.replacements[index]
            try:
                await self._copy(lanes, target)
            except TargetFailedError as error:
                logger.info("ledger %d: %s", self._ledger.value.ledger_id, error)
                refused.add(target)
            else:
                return target
        if refused:  # there are some, and they may take it soon
            raise BookieUnavailableError(
                f"ledger {self._ledger.value.ledger_id}: no bookie has taken the copies of "
                f"{fragment.bookies[index]}, tried: {', '.join(sorted(refused))}"
            )
        raise NotEnoughBookiesError(
            f"ledger {self._ledger.value.ledger_id}: no writable bookie outside of its ensemble "
            f"takes the copies of {fragment.bookies[index]}"
            + " in a rack that the strict placement policy allows"
            * self._context.is_strict
        )

    async def _copy(self, lanes: Sequence[LaneCopy], target: BookieId) -> None:
        if lanes:
            await self._copier.copy(lanes, target)
            self.changed = True

    async def _rename(
        self,
        fragment: FinalFragment,
        replacements: Mapping[int, BookieId],
        lost: frozenset[BookieId],
    ) -> None:
        """Let the metadata name the bookies that hold the copies now (rule R5).

        What is written stands on metadata that were read before the copies were made. If others
        are there now, the bookies are asked again: one of them may have given its copy back, which
        changes the metadata first (rule G9). They are also if it took a while: one may have been
        formatted again. Who is taken out of the cluster is not named (R10).
        """
        took_s = asyncio.get_running_loop().time() - self._copying_since
        for attempt in range(_CONFLICTS_MAX):
            wanted = renamed(self._ledger.value, fragment, replacements)
            if wanted is None:
                break
            if attempt or took_s > _AS_COPIED_S:
                await self._ask_again(fragment, replacements, lost)
            lacks = self._errors or self.unknown or all_names(wanted) & lost
            parts = await self._refuse_gone(replacements)
            also = () if attempt or lacks else self._also()
            parts += also
            command = WriteMetadata(wanted, self._ledger.version)
            answer = await self._context.write_metadata(command, closes=False, also=parts)
            if isinstance(answer, MetadataFailed):
                raise answer.error
            self._ledger = Versioned(answer.metadata, answer.version)
            if isinstance(answer, MetadataWritten):
                self.changed, self.is_settled = True, bool(also)
                return
        if not is_renamed(self._ledger.value, fragment, replacements):
            raise ConflictError(
                f"ledger {self._ledger.value.ledger_id}: its fragment at entry {fragment.first} "
                "was changed by somebody else meanwhile"
            )

    async def _refuse_gone(self, replacements: Mapping[int, BookieId]) -> list[Operation]:
        """The parts of a transaction that fails if a new bookie has begun to leave (rule R10).

        Raises BookieUnavailableError if one is leaving, or has left the cluster.
        """
        store, targets = self._context.store, replacements.values()
        parts = await that_stay(store, targets)
        registered = self._context.directory.get
        if absent := [each for each in targets if registered(each) is None]:
            known = await BookieRegistry(store).list_cookies()
            if forgotten := sorted(set(absent).difference(known)):
                raise BookieUnavailableError(f"bookie {forgotten[0]} has left the cluster")
        return parts


def _access(ledger: LedgerMetadata, copy_key: bytes) -> Access:
    """The keys of a ledger without a password are derived; of another only hashes are known."""
    if ledger.has_password:
        return Access(hash_as_key(ledger.access_key_hash), copy_key, None)
    access_key, digest_key = derive_keys(b"", ledger.ledger_id, ledger.incarnation)
    return Access(access_key, access_key, digest_for(ledger.digest_type, digest_key))
