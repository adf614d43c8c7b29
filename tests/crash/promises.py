"""The model: what a store must contain after a crash, what it may contain, and nothing else.

An entry's frame follows from its ids, so the model keeps ids only. What was answered OK must be
there; what was sent at all may be there; everything else must be denied, and a denial of what must
be there is the worst failure of all, because a recovery would believe it and cut the ledger. Of a
ledger that was deleted nothing is promised: a journal that is replayed may bring parts of it back,
and then it is deleted once more, for good.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from spark_ledger.bookie_api import LedgerEnd
from spark_ledger.runs import EntryRun
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.access import key_status
from tests.listed import listed
from tests.unit.bookie_server.storage.support import Answer, Machine, frame

LEDGER_COUNT = 5
_NEVER_SENT = 90_000
_SHUTS_DOWN = "the bookie is shutting down"
"""Said to adds that wait for room when it closes."""
_DENIALS = (BookieStatus.NO_SUCH_ENTRY, BookieStatus.NO_SUCH_LEDGER)


def key_of(ledger_id: int) -> bytes:
    """Odd ledgers have an access key."""
    return b"key of %d" % ledger_id if ledger_id % 2 else b""


def size_of(ledger_id: int, entry_id: int) -> int:
    """Most frames are small; one in eleven takes several pages."""
    if (ledger_id + entry_id) % 11 == 0:
        return 9000
    return 700 if ledger_id == 4 else 36 + entry_id % 9


def frame_of(ledger_id: int, entry_id: int) -> bytes:
    """The one frame this entry has."""
    return frame(ledger_id, entry_id, size_of(ledger_id, entry_id))


def run_of(ledger_id: int, ids: Sequence[int]) -> EntryRun:
    """A run of these entries, ascending."""
    frames = [frame_of(ledger_id, entry_id) for entry_id in ids]
    consecutive = ids[-1] - ids[0] == len(ids) - 1
    return EntryRun(
        LedgerId(ledger_id),
        EntryId(ids[0]),
        None if consecutive else list(ids),
        [len(each) for each in frames],
        b"".join(frames),
    )


@dataclass
class Promises:
    """What was answered OK, and what was sent at all."""

    entries: dict[int, set[int]] = field(default_factory=dict)
    sent: dict[int, set[int]] = field(default_factory=dict)
    fenced: set[int] = field(default_factory=set)
    fences_sent: set[int] = field(default_factory=set)
    lacs: dict[int, int] = field(default_factory=dict)
    lacs_sent: dict[int, int] = field(default_factory=dict)
    refused: list[Answer] = field(default_factory=list)
    deleted: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    """Of these: those that may come again, so no crash brings them back (rules G2 and G9)."""
    unreadable: int = 0

    @property
    def ledgers(self) -> list[int]:
        """All that was ever sent, and those to be sent first."""
        return sorted({*range(LEDGER_COUNT), *self.sent, *self.fences_sent, *self.lacs_sent})

    def delete(self, ledger_id: int) -> None:
        """Nothing is promised of it from now on; its id is not used again."""
        self.deleted.add(ledger_id)
        self.fenced.discard(ledger_id)
        for promised in (self.entries, self.lacs):
            promised.pop(ledger_id, None)

    def check_gone(self, machine: Machine, context: str) -> None:
        """Deleted ledgers go when they are deleted once more, and stay away after a flush."""
        back = [each.ledger_id for each in machine.bookie.held_ledgers(-1, 1000)]
        machine.bookie.delete_ledgers(each for each in back if each in self.deleted)
        for ledger_id in map(LedgerId, self.deleted):
            assert listed(machine.bookie, ledger_id) is None, f"{context}: {ledger_id} is back"

    @property
    def acknowledged(self) -> int:
        """Entries answered OK."""
        return sum(map(len, self.entries.values()))

    def refused_by_fault(self) -> list[Answer]:
        """Answers that only a failing disk explains: no fence, and no end of the bookie."""
        return [
            (status, message)
            for status, message in self.refused
            if status is not BookieStatus.FENCED and message != _SHUTS_DOWN
        ]

    def check(self, machine: Machine, context: str, choose: random.Random | None = None) -> None:
        """Every promise is kept, and nothing was invented. ``choose`` picks what is asked on top
        of it: single entries, strides, adds of a recovery."""
        for ledger_id in self.ledgers:
            held = machine.held(ledger_id)
            if ledger_id in self.gone:
                is_back = listed(machine.bookie, LedgerId(ledger_id)) is not None
                assert not is_back, f"{context}: ledger {ledger_id} is back"
            self._check_entries(ledger_id, held, f"{context}: ledger {ledger_id}")
            self._check_state(machine, ledger_id, held, f"{context}: ledger {ledger_id}")
            if choose is not None:
                self._ask(machine, ledger_id, held, choose, f"{context}: ledger {ledger_id}")

    def check_honest(self, machine: Machine, context: str) -> bool:
        """On a failing disk: what was promised is right or unreadable, never denied or wrong.

        True when nothing was unreadable.
        """
        whole = True
        for ledger_id in self.ledgers:
            where = f"{context}: ledger {ledger_id}"
            for entry_id in sorted(self.entries.get(ledger_id, ())):
                whole &= self.check_entry(machine, ledger_id, entry_id, where)
            end = machine.bookie.end_of_ledger(LedgerId(ledger_id), access_key=b"")
            if end.status is BookieStatus.IO_ERROR:
                whole = False
            elif ledger_id in self.fenced:
                assert end.fenced, f"{where} is not fenced"
            if self.entries.get(ledger_id):
                assert end.status is not BookieStatus.NO_SUCH_LEDGER, f"{where} is denied"
        return whole

    def check_entry(self, machine: Machine, ledger_id: int, entry_id: int, where: str) -> bool:
        """An entry that was promised is right, or unreadable; whether it was right."""
        outcome = machine.bookie.read(
            LedgerId(ledger_id), EntryId(entry_id), EntryId(entry_id), stride=1, max_bytes=1
        )
        if outcome.status is BookieStatus.IO_ERROR and outcome.message:
            self.unreadable += 1
            return False
        assert outcome.status is BookieStatus.OK, f"{where}: entry {entry_id}: {outcome}"
        found = outcome.runs[0].frames
        assert found == frame_of(ledger_id, entry_id), f"{where}: {ledger_id}/{entry_id} is wrong"
        return True

    def _check_entries(self, ledger_id: int, held: dict[int, bytes], where: str) -> None:
        missing = self.entries.get(ledger_id, set()) - held.keys()
        assert not missing, f"{where} lost {sorted(missing)}"
        invented = held.keys() - self.sent.get(ledger_id, set())
        assert not invented, f"{where} invented {sorted(invented)}"
        for entry_id, found in held.items():
            assert found == frame_of(ledger_id, entry_id), f"{where} has wrong bytes at {entry_id}"

    def _check_state(
        self, machine: Machine, ledger_id: int, held: dict[int, bytes], where: str
    ) -> None:
        end = machine.bookie.end_of_ledger(LedgerId(ledger_id), access_key=b"")
        promised = bool(self.entries.get(ledger_id)) or ledger_id in self.fenced
        if end.status is not BookieStatus.OK:
            assert end.status is BookieStatus.NO_SUCH_LEDGER and not held, f"{where}: {end}"
            assert not promised and ledger_id not in self.lacs, f"{where} is denied"
            return
        lac = self.lacs.get(ledger_id, -1)
        assert lac <= end.last_add_confirmed, f"{where}: the LAC {lac} went back to {end}"
        assert end.last_add_confirmed <= self.lacs_sent.get(ledger_id, -1), f"{where}: {end}"
        assert end.last_entry == max(held, default=-1), f"{where}: {end}, held {max(held)}"
        assert end.fenced or ledger_id not in self.fenced, f"{where} is not fenced"
        assert not end.fenced or ledger_id in self.fences_sent, f"{where} was never fenced"
        self._check_key(machine, ledger_id, promised, end, where)

    def _check_key(
        self, machine: Machine, ledger_id: int, promised: bool, end: LedgerEnd, where: str
    ) -> None:
        key = key_of(ledger_id)
        if promised:
            wrong = key_status(machine.bookie, LedgerId(ledger_id), b"wrong")
            assert wrong is BookieStatus.UNAUTHORIZED, f"{where}: its key is lost"
            right = key_status(machine.bookie, LedgerId(ledger_id), key)
            assert right is BookieStatus.OK, f"{where}: its key is another, {right.name}"
        if end.fenced:
            status = machine.add(ledger_id, [_NEVER_SENT], key=key)
            # A replay may bring back the fence of a deleted ledger without its key (rule S17).
            refused = {BookieStatus.FENCED} | (
                {BookieStatus.UNAUTHORIZED} if ledger_id in self.deleted else set()
            )
            assert status in refused, f"{where}: its writer's add is {status.name}"

    def _ask(
        self,
        machine: Machine,
        ledger_id: int,
        held: dict[int, bytes],
        choose: random.Random,
        where: str,
    ) -> None:
        """Reads by entry and by stride agree with the list; what was never sent is denied."""
        first = choose.randrange(max(held, default=0) + 3)
        stride = choose.choice((1, 2, 3))
        expected = _stretch(held, range(first, max(held, default=0) + 1, stride))
        outcome = machine.bookie.read(
            LedgerId(ledger_id),
            EntryId(first),
            EntryId(max(first, *held, 0)),
            stride=stride,
            max_bytes=1 << 30,
        )
        found = {e: bytes(part) for run in outcome.runs for e, part in run.split()}
        assert found == expected, f"{where}: read from {first} by {stride} has {sorted(found)}"
        never = machine.bookie.read(
            LedgerId(ledger_id), EntryId(_NEVER_SENT), EntryId(_NEVER_SENT), stride=1, max_bytes=1
        )
        assert never.status in _DENIALS, f"{where}: {never}"
        if self.entries.get(ledger_id):
            assert never.status is BookieStatus.NO_SUCH_ENTRY, f"{where} is denied: {never}"


def _stretch(held: dict[int, bytes], ids: Iterable[int]) -> dict[int, bytes]:
    """The entries of ``ids`` up to the first that is not held."""
    found: dict[int, bytes] = {}
    for entry_id in ids:
        if entry_id not in held:
            break
        found[entry_id] = held[entry_id]
    return found
