"""The words of a script about one bookie: the real one, on a disk that can lose power.

A request is answered when the bookie says so, which is after a sync of its disk; ``hold syncs``
keeps them from happening, so that a script can look at what waits.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from bookie_server.storage.fs.fault_fs import Fault, FaultFileSystem, Operation
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.index.memory_index import MemoryIndex
from spark_ledger.errors import ConfigurationError
from spark_ledger.limits import MIB
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.access import key_status
from tests.scenarios.world import ranges_text
from tests.unit.bookie_server.storage.support import JOURNAL, Machine, formatted, make_run

LEDGER = 7


class BookieWords:
    """One bookie and what it answers. ``in ledger 8``, ``password x`` and so on end a command."""

    def __init__(self) -> None:
        self._files = MemoryFileSystem()
        self._machine: Machine | None = None
        self._lines: list[str] = []
        self._told = "nothing"
        self._read = "nothing"
        self._held = False
        self._failing = ""

    @property
    def machine(self) -> Machine:
        assert self._machine is not None, "the bookie is not running"
        return self._machine

    def run(self, line: str) -> list[str]:
        word, *arguments = line.split()
        method = getattr(self, "do_" + word.replace("-", "_"), None)
        if method is None:
            raise ConfigurationError(f"no such command: {word}")
        if word in ("add", "fence", "announce"):
            self._told = "nothing"
        method(*arguments)
        if self._machine is not None and not self._held:
            self._settle()
        lines, self._lines = ["  " + line for line in self._lines], []
        return lines

    def world_lines(self) -> list[str]:
        return self._lines

    def close(self) -> None:
        """Nothing is held: it is all memory."""

    def _settle(self) -> None:
        self.machine.settle()
        for message in self.machine.fatal:
            self._lines.append("the bookie ends: its journal cannot be trusted any more")
            assert message, "it says why"
        self.machine.fatal.clear()

    # -- the bookie ---------------------------------------------------------------------------

    def do_bookie(self) -> None:
        """bookie: a new one, with empty disks."""
        self._files = formatted()
        self._held, self._failing = False, ""
        self._start()

    def do_restart(self) -> None:
        """restart: it is stopped in good order and started again."""
        self.machine.close()
        self._start()

    def do_power_cut(self) -> None:
        """power-cut: whatever was not synced is gone. It starts again."""
        self._files = self._files.crash_clone(None)
        self._failing = ""
        self._start()

    def do_checkpoint(self) -> None:
        """checkpoint: entries move from memory to the entry log, the journal is recycled."""
        self.machine.flush()

    def do_hold(self, what: str) -> None:
        """hold syncs: the disk takes its time."""
        assert what == "syncs", what
        self._held = True

    def do_release(self, what: str) -> None:
        """release syncs."""
        assert what == "syncs", what
        self._held = False

    def do_fail(self, what: str) -> None:
        """fail syncs | writes: the journal's disk returns an error from now on."""
        self._failing = {"syncs": "fdatasync", "writes": "pwritev"}[what]

    def _start(self) -> None:
        files = FaultFileSystem(self._files, self._fault)
        self._machine = Machine(files, open_index=lambda path: MemoryIndex(self._files, path))

    def _fault(self, operation: Operation) -> Fault | None:
        on_journal = operation.path.parent == JOURNAL
        return Fault(errno.EIO) if on_journal and operation.kind == self._failing else None

    # -- requests -----------------------------------------------------------------------------

    def do_add(self, *words: str) -> None:
        """add 0..3 7 [after N] [in recovery] [password P] [to ledger N]: store entries; the writer
        has confirmed everything up to N."""
        given = _Options(words)
        run = make_run(given.ledger_id, given.numbers)
        verb = "recovery add" if given.recovery else "add"
        self.machine.keys.learn(given.ledger_id, given.password)
        self.machine.bookie.add(
            run,
            access_key=given.password,
            recovery=given.recovery,
            last_add_confirmed=EntryId(given.after),
            done=self._answer(f"{verb} of {ranges_text(given.numbers)}"),
        )

    def do_fence(self, *words: str) -> None:
        """fence [password P] [ledger N]."""
        given = _Options(words)
        self.machine.keys.learn(given.ledger_id, given.password)
        self.machine.bookie.fence(
            LedgerId(given.ledger_id), access_key=given.password, done=self._answer("fence")
        )

    def do_announce(self, last: str, *words: str) -> None:
        """announce 5: an idle writer tells what is confirmed."""
        given = _Options(words)
        self.machine.keys.learn(given.ledger_id, given.password)
        self.machine.bookie.write_last_confirmed(
            LedgerId(given.ledger_id),
            EntryId(int(last)),
            access_key=given.password,
            done=self._answer(f"announcement of {last}"),
        )

    def do_read(self, span: str, *words: str) -> None:
        """read 0..9 [ledger N] [password P]: up to the first that is not there."""
        given = _Options(words)
        first, _, last = span.partition("..")
        access = key_status(self.machine.bookie, LedgerId(given.ledger_id), given.password)
        if access is not BookieStatus.OK:
            self._read = _plain(access)
            self._lines.append(f"read: {self._read}")
            return
        outcome = self.machine.bookie.read(
            LedgerId(given.ledger_id),
            EntryId(int(first)),
            EntryId(int(last or first)),
            stride=1,
            max_bytes=MIB,
        )
        found = [entry_id for run in outcome.runs for entry_id in run.ids()]
        told = "" if outcome.status is BookieStatus.OK else f"; {_plain(outcome.status)}"
        at = f" {outcome.entry_id}" if outcome.status is BookieStatus.NO_SUCH_ENTRY else ""
        self._read = f"{ranges_text(found)}{told}{at}"
        self._lines.append(f"read: {self._read}")

    def do_end(self, *words: str) -> None:
        """end [ledger N]: what the bookie says of the ledger's end."""
        given = _Options(words)
        end = self.machine.bookie.end_of_ledger(
            LedgerId(given.ledger_id), access_key=given.password
        )
        if end.status is not BookieStatus.OK:
            self._lines.append(f"end: {_plain(end.status)}")
            return
        fenced = ", fenced" if end.fenced else ""
        self._lines.append(
            f"end: last add confirmed {end.last_add_confirmed}, last entry {end.last_entry}{fenced}"
        )

    def _answer(self, what: str) -> Callable[[BookieStatus, str], None]:
        machine = self.machine

        def done(status: BookieStatus, message: str) -> None:
            assert self._machine is machine, "a bookie that is gone answers nothing"
            assert status is BookieStatus.OK or message, "a refusal says why"
            self._told = _plain(status)
            self._lines.append(f"{what}: {self._told}")

        return done

    # -- expectations -------------------------------------------------------------------------

    def do_expect(self, kind: str, *words: str) -> None:
        """expect holds 0..4 7 [ledger N] | nothing; expect fenced yes|no; expect lac 3;
        expect told io error: the answer to the newest request, or: nothing; expect read 0..3;
        no such entry 4: what the last read brought, and why it ended."""
        text = " ".join(words)
        if kind == "told":
            assert self._told == text, f"told: {self._told}"
        elif kind == "read":
            assert self._read == text, f"read: {self._read}"
        elif kind == "holds":
            assert words, "say what, or: nothing"
            given = _Options(words if words[0] != "nothing" else words[1:])
            held = sorted(self.machine.held(given.ledger_id))
            assert held == given.numbers, f"holds {ranges_text(held)}"
        elif kind == "fenced":
            assert self.machine.is_fenced(LEDGER) == (text == "yes"), f"not: fenced {text}"
        else:
            assert kind == "lac", f"no such expectation: {kind}"
            assert self.machine.lac(LEDGER) == int(text), str(self.machine.lac(LEDGER))


class _Options:
    """The words behind a command: numbers, then ``after N``, ``password P``, ``ledger N`` ..."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self.numbers: list[int] = []
        self.after, self.ledger_id = -1, LEDGER
        self.password, self.recovery = b"", False
        rest = [word for word in words if word not in ("in", "to")]
        while rest:
            word = rest.pop(0)
            if word == "recovery":
                self.recovery = True
            elif word == "after":
                self.after = int(rest.pop(0))
            elif word == "ledger":
                self.ledger_id = int(rest.pop(0))
            elif word == "password":
                self.password = rest.pop(0).encode()
            else:
                first, _, last = word.partition("..")
                self.numbers += range(int(first), int(last or first) + 1)


def _plain(status: BookieStatus) -> str:
    return status.name.lower().replace("_", " ") if status is not BookieStatus.OK else "done"
