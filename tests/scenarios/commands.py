"""The words of a scenario script, one method for each; ``expect`` has a file of its own."""

from __future__ import annotations

from spark_ledger.errors import ConfigurationError
from spark_ledger.protocol.append_limits import AppendLimits
from spark_ledger.types import (
    BookieId,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    LedgerState,
    Quorums,
)
from tests.scenarios.expectations import Expectations
from tests.scenarios.invariants import Invariants
from tests.scenarios.recoverer import Reader, Recoverer
from tests.scenarios.stores import MetadataStore, ModelBookie, Stored
from tests.scenarios.world import World, metadata_text, ranges_text
from tests.scenarios.writer import Writer

FLAGS = {
    "read-only": "read_only",
    "refuses-adds": "refuses_adds",
    "refuses-recovery": "refuses_recovery_adds",
    "refuses-reads": "refuses_reads",
    "limbo": "in_limbo",
    "refuses-password": "refuses_password",
    "speaks-of-a-fence": "speaks_of_a_fence",
}


class Commands:
    """One scenario being run."""

    def __init__(self) -> None:
        self._world: World | None = None
        self._invariants: Invariants | None = None
        self._states: dict[str, str] = {}

    @property
    def world(self) -> World:
        assert self._world is not None, "a scenario begins with create or ledger"
        return self._world

    @property
    def writer(self) -> Writer:
        writer = self.world.actors["writer"]
        assert isinstance(writer, Writer)
        return writer

    def world_lines(self) -> list[str]:
        """Output that no command has shown yet."""
        return self._world.lines if self._world else []

    def close(self) -> None:
        """Nothing is held open."""

    def run(self, line: str) -> list[str]:
        """Run one command; what it caused, and the states that it changed."""
        word, *arguments = line.split()
        method = getattr(self, "do_" + word.replace("-", "_"), None)
        if method is None:
            raise ConfigurationError(f"no such command: {word}")
        method(*arguments)
        if word != "expect":
            self.world.settle()
        assert self._invariants is not None
        self._invariants.check_everything()
        lines = [*self.world.lines, *self._changed_states()]
        self.world.lines.clear()
        return ["  " + line for line in lines]

    def _changed_states(self) -> list[str]:
        store = self.world.metadata
        states = {name: actor.state() for name, actor in self.world.actors.items()}
        states["metadata"] = f"metadata: version {store.version}, {metadata_text(store.value)}"
        lines = [
            f"= {state}" for name, state in states.items() if state != self._states.get(name, "")
        ]
        self._states = states
        return [line for line in lines if line != "= "]

    # -- the beginning -----------------------------------------------------------------------------

    def do_create(self, e: str, wq: str, aq: str, *rest: str) -> None:
        """create E3 WQ3 AQ2 b0 b1 b2 [spares b3 b4] [bound N]: a ledger and its writer."""
        bound = None
        if "bound" in rest:
            at = rest.index("bound")
            bound, rest = int(rest[at + 1]), rest[:at]
        names, spares = _split_at(rest, "spares")
        self._make(_quorums(e, wq, aq), [Fragment(EntryId(0), _ids(names))], spares)
        limits = AppendLimits()
        if bound is not None:
            limits = AppendLimits(bytes_in_flight_max=bound, entry_bytes=0)
        Writer(self.world, "writer", limits=limits)

    def do_ledger(self, e: str, wq: str, aq: str, *rest: str) -> None:
        """ledger E2 WQ2 AQ2 0 b1 b2 1 b1 b3 [spares b4]: an open ledger whose writer is gone."""
        words, spares = _split_at(rest, "spares")
        fragments: list[tuple[int, list[str]]] = []
        for word in words:
            if word.isdigit():
                fragments.append((int(word), []))
            else:
                fragments[-1][1].append(word)
        made = [Fragment(EntryId(first), _ids(names)) for first, names in fragments]
        self._make(_quorums(e, wq, aq), made, spares)

    def _make(self, quorums: Quorums, fragments: list[Fragment], spares: list[str]) -> None:
        names = sorted({name for fragment in fragments for name in fragment.bookies} | set(spares))
        metadata = LedgerMetadata(LedgerId(7), quorums, tuple(fragments))
        bookies = {BookieId(name): ModelBookie(BookieId(name)) for name in names}
        self._world = World(bookies, MetadataStore(metadata), registered=list(bookies))
        self._invariants = Invariants(self._world)
        self._world.checks.append(self._invariants.check)
        self._states = {}

    def do_store(self, name: str, *ids: str) -> None:
        """store b1 0..9 14: the bookie holds these entries, each with the LAC before it."""
        bookie = self.world.bookies[BookieId(name)]
        bookie.knows_ledger = True
        for entry_id in _numbers(ids):
            stored = Stored(f"e{entry_id}", -1, 10 * (entry_id + 1))
            bookie.entries[entry_id] = self.world.written[entry_id] = stored

    def do_password(self, password: str) -> None:
        """password P: the bookies know the ledger under this password, and so does the writer."""
        for bookie in self.world.bookies.values():
            bookie.password = password
        if "writer" in self.world.actors:
            self.writer.password = password

    # -- the writer --------------------------------------------------------------------------------

    def do_add(self, count: str, size: str = "10") -> None:
        """add N [bytes]: the application adds N entries in one batch."""
        if not self.writer.takes_entries:
            error = self.writer.machine.error
            why = type(error).__name__ if error else "LedgerClosedError"
            self.world.say(f"writer refuses: {why}")
            return
        self.writer.add(int(count), int(size))

    def do_close(self) -> None:
        self.writer.close()

    # -- other clients -----------------------------------------------------------------------------

    def do_recover(self, name: str, password: str = "") -> None:
        """recover r1 [password]: a client opens the ledger with recovery."""
        if self.world.metadata.deleted:
            self.world.say(f"{name} is told by the metadata store: no such ledger")
            return
        known = next(iter(self.world.bookies.values())).password
        Recoverer(self.world, name, password=password or known)

    def do_refresh(self, name: str = "reader") -> None:
        """refresh [name]: a reader learns the last add confirmed."""
        self._reader(name).refresh()

    def do_poll(self, name: str = "reader") -> None:
        """poll [name]: a reader that tails asks for anything newer."""
        self._reader(name).poll()

    def do_read(self, span: str, name: str = "reader") -> None:
        """read 0..4 [name]: a reader reads a range."""
        first, last = _span(span)
        reader = self._reader(name)
        if last > reader.last_add_confirmed:
            self.world.say(f"{name} refuses: entry {last} is not confirmed as far as it knows")
            return
        reader.read(first, last)

    def _reader(self, name: str) -> Reader:
        if name not in self.world.actors:
            Reader(self.world, name)
        reader = self.world.actors[name]
        assert isinstance(reader, Reader)
        return reader

    # -- faults ------------------------------------------------------------------------------------

    def do_hold(self, *what: str) -> None:
        """hold b0 | metadata | registry | b0 replies | r1 b0: what is sent there (from there, from
        the one to the other) waits."""
        self.world.held.add(" ".join(what))

    def do_release(self, *what: str) -> None:
        """release b0: the opposite of hold; what waited arrives."""
        self.world.held.remove(" ".join(what))

    def do_deliver(self, name: str, count: str = "1") -> None:
        """deliver b0 [n]: let through the oldest n messages that are held there."""
        for _ in range(int(count)):
            message = next(m for m in self.world.messages if name in (m.source, m.target))
            self.world.deliver(message)

    def do_lose(self, *names: str) -> None:
        """lose b0 [writer]: the oldest message that waits there (from there to there) is lost."""
        message = next(
            m
            for m in self.world.messages
            if (names[0] in (m.source, m.target) if len(names) == 1 else _between(m, names))
        )
        self.world.lose(message)

    def do_repeat(self, *names: str) -> None:
        """repeat b0 [writer]: the oldest answer that waits there arrives, and will arrive again."""
        self.world.repeat(
            next(
                m
                for m in self.world.messages
                if m.repeatable
                and (names[0] == m.source if len(names) == 1 else _between(m, names))
            )
        )

    def do_kill(self, *names: str) -> None:
        for name in names:
            self.world.kill(BookieId(name))

    def do_restart(self, *names: str) -> None:
        for name in names:
            self.world.restart(BookieId(name))

    def do_disconnect(self, name: str) -> None:
        """disconnect b0: the writer's connection breaks, the bookie lives on."""
        self.writer.disconnect(BookieId(name))

    def do_spare(self, *names: str) -> None:
        """spare b7: a new, empty bookie registers."""
        for name in names:
            password = next(iter(self.world.bookies.values())).password
            self.world.bookies[BookieId(name)] = ModelBookie(BookieId(name), password=password)
            self.world.registered.append(BookieId(name))

    def do_unregister(self, *names: str) -> None:
        for name in names:
            self.world.registered.remove(BookieId(name))

    def do_make(self, name: str, flag: str) -> None:
        """make b0 read-only | refuses-adds | refuses-recovery | refuses-reads | limbo |
        refuses-password | speaks-of-a-fence."""
        setattr(self.world.bookies[BookieId(name)], FLAGS[flag], True)

    def do_mend(self, name: str, flag: str) -> None:
        setattr(self.world.bookies[BookieId(name)], FLAGS[flag], False)

    def do_damage(self, name: str, *ids: str) -> None:
        """damage b0 3: the bookie's copy does not match its digest any more."""
        self.world.bookies[BookieId(name)].damaged.update(_numbers(ids))

    def do_hide(self, name: str, *ids: str) -> None:
        """hide b0 3: the bookie says that it does not hold the entry."""
        self.world.bookies[BookieId(name)].hidden.update(_numbers(ids))

    def do_cap(self, name: str, count: str) -> None:
        """cap b0 2: the bookie ends every read after so many entries."""
        self.world.bookies[BookieId(name)].read_cap = int(count)

    def do_time(self, seconds: str) -> None:
        """time 0.1: so many seconds pass."""
        self.world.advance(float(seconds))

    # -- the metadata store ------------------------------------------------------------------------

    def do_metadata(self, what: str) -> None:
        """metadata refuses | accepts."""
        self.world.metadata.refuses = {"refuses": True, "accepts": False}[what]

    def do_rereplicate(self, first: str, *names: str) -> None:
        """rereplicate 0 b1 b5 b2: another client gives a fragment other bookies, copies made."""
        store = self.world.metadata
        fragments = []
        for fragment in store.value.fragments:
            if fragment.first_entry == int(first):
                fragment = Fragment(fragment.first_entry, _ids(names))
            fragments.append(fragment)
        for entry_id, stored in self.world.written.items():
            for name in names:
                self.world.bookies[BookieId(name)].entries.setdefault(entry_id, stored)
        value = store.value.with_changes(fragments=tuple(fragments))
        assert store.compare_and_set(value, store.version)

    def do_other_closes(self, last: str, *on: str) -> None:
        """other-closes 3 [on b0 b1 b3]: another client recovered the ledger and closed it at this
        entry, the last fragment on these bookies."""
        store = self.world.metadata
        end = EntryId(int(last))
        length = self.world.written[end].length if end in self.world.written else 0
        fragments = list(store.value.fragments)
        if on:
            first = fragments[-1].first_entry
            fragments[-1] = Fragment(first, _ids(on[1:]))
            for entry_id in range(first, end + 1):
                for name in on[1:]:
                    self.world.bookies[BookieId(name)].entries[entry_id] = self.world.written[
                        entry_id
                    ]
        value = store.value.with_changes(
            state=LedgerState.CLOSED, last_entry_id=end, length=length, fragments=tuple(fragments)
        )
        assert store.compare_and_set(value, store.version)

    def do_delete(self) -> None:
        """delete: another client deletes the ledger; the bookies keep what they have for now."""
        self.world.metadata.deleted = True

    def do_collect(self, *names: str) -> None:
        """collect b0: the bookie finds out that the ledger is gone and drops its entries, not the
        fence."""
        for name in names:
            bookie = self.world.bookies[BookieId(name)]
            bookie.entries.clear()

    def do_other_marks(self) -> None:
        """other-marks: another client has begun to recover the ledger."""
        store = self.world.metadata
        value = store.value.with_changes(state=LedgerState.IN_RECOVERY)
        assert store.compare_and_set(value, store.version)

    # -- looking -----------------------------------------------------------------------------------

    def do_bookies(self) -> None:
        """bookies: what every bookie holds."""
        for name, bookie in self.world.bookies.items():
            notes = f", last add confirmed {bookie.last_add_confirmed}"
            notes += ", fenced" if bookie.fenced else ""
            notes += "" if bookie.up else ", dead"
            self.world.say(f"{name} holds {ranges_text(bookie.entries)}{notes}")

    def do_expect(self, *what: str) -> None:
        """expect ...: see ``tests.scenarios.expectations``. Holds under --rewrite too."""
        Expectations(self.world).check(list(what))


def _between(message: object, names: tuple[str, ...]) -> bool:
    return (getattr(message, "source", ""), getattr(message, "target", "")) == names


def _quorums(e: str, wq: str, aq: str) -> Quorums:
    assert e[0] == "E" and wq[:2] == "WQ" and aq[:2] == "AQ", "write E3 WQ3 AQ2"
    return Quorums(int(e[1:]), int(wq[2:]), int(aq[2:]))


def _split_at(words: tuple[str, ...], word: str) -> tuple[list[str], list[str]]:
    if word not in words:
        return list(words), []
    at = words.index(word)
    return list(words[:at]), list(words[at + 1 :])


def _ids(names: list[str] | tuple[str, ...]) -> tuple[BookieId, ...]:
    return tuple(BookieId(name) for name in names)


def _span(text: str) -> tuple[int, int]:
    first, _, last = text.partition("..")
    return int(first), int(last or first)


def _numbers(words: tuple[str, ...]) -> list[int]:
    spans = [_span(word) for word in words]
    return [number for first, last in spans for number in range(first, last + 1)]
