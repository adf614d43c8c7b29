"""What may happen in each state of a scope, and a function to the state after it.

Bookies and the metadata store are models that follow their contract and none of their code.
"""

from __future__ import annotations

from collections.abc import Iterator

from spark_ledger.errors import NoSuchEntryError
from spark_ledger.protocol.append import AppendMachine
from spark_ledger.protocol.events import (
    AddAcknowledged,
    AddFailed,
    Append,
    BookiesChosen,
    Close,
    EntriesRead,
    Event,
    LastConfirmedAnswer,
    LengthRead,
    LengthUnknown,
    MetadataConflict,
    MetadataRead,
    MetadataWritten,
    ReadEnded,
)
from spark_ledger.protocol.last_confirmed import LastConfirmedRead
from spark_ledger.protocol.recovery import RecoveryMachine
from spark_ledger.types import (
    BookieId,
    BookieStatus,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    LedgerState,
)
from tests.exhaustive.promises import Broken, check_change
from tests.exhaustive.scopes import Scope
from tests.exhaustive.shells import (
    ENTRY_BYTES,
    AskLast,
    AskLength,
    Channel,
    Choose,
    Clients,
    CompareAndSet,
    Look,
    Read,
    Request,
    Step,
    Store,
)
from tests.exhaustive.states import Action, Bookie, State
from tests.exhaustive.values import Interned, freeze

_EMPTY = Bookie()


class World:
    """All states of one scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        count = scope.quorums.ensemble_size + scope.spares
        self.names = tuple(BookieId(f"b{index}") for index in range(count))
        self._index = {name: index for index, name in enumerate(self.names)}
        self.clients = Clients(scope.quorums)
        self.metadata: Interned[LedgerMetadata] = Interned()
        self.channels: Interned[Channel] = Interned()
        self.messages: Interned[Request | Event] = Interned()
        self._sent: dict[int, tuple[tuple[int, int], ...]] = {}
        """By identity of the step; ``clients`` and ``_started`` keep all steps alive."""
        self._started: dict[tuple[str, int, int, int], Step] = {}

    def first(self) -> State:
        """The writer has created the ledger; nothing else has happened."""
        scope = self.scope
        fragment = Fragment(EntryId(0), self.names[: scope.quorums.ensemble_size])
        metadata = LedgerMetadata(LedgerId(7), scope.quorums, (fragment,))
        writer = self.clients.start(0, AppendMachine(metadata, 0, now=0.0))
        return State(
            metadata=self.metadata_number(metadata),
            version=0,
            bookies=(_EMPTY,) * len(self.names),
            clients=(writer.client, *(-1,) * (scope.recoveries + scope.readers)),
            network=(),
            frames=(),
            confirmed=-1,
            crashes=scope.crashes,
            losses=scope.losses,
            pushed_at_close=-1,
            slow=(),
            slow_left=scope.slow or 0,
        )

    def metadata_number(self, metadata: LedgerMetadata) -> int:
        return self.metadata.number(freeze(metadata), metadata)

    def message_number(self, message: Request | Event) -> int:
        """The number of a message."""
        try:
            return self.messages.number((type(message), message), message)
        except TypeError:  # metadata have no hash
            return self.messages.number(freeze(message), message)

    def numbers_of(self, step: Step) -> tuple[tuple[int, int], ...]:
        """What a step of a client sent: numbers of channels and messages."""
        found = self._sent.get(id(step))
        if found is None:
            found = self._sent[id(step)] = tuple(
                (2 * self.channels.number(channel, channel), self.message_number(request))
                for channel, request in step.sent
            )
        return found

    def started(self, kind: str, index: int, metadata: int, version: int) -> Step:
        """A client that reads these metadata and starts."""
        key = (kind, index, metadata, version)
        if key not in self._started:
            value = self.metadata[metadata]
            machine: RecoveryMachine | LastConfirmedRead
            if kind == "recover":
                machine = RecoveryMachine(value, version, now=0.0)
            else:
                machine = LastConfirmedRead(value, fence=False)
            self._started[key] = self.clients.start(index, machine)
        return self._started[key]

    def index(self, name: BookieId) -> int:
        """Where a bookie stands in a state."""
        return self._index[name]

    def value(self, state: State) -> LedgerMetadata:
        """The metadata that are stored."""
        return self.metadata[state.metadata]

    # -- what may happen ---------------------------------------------------------------------------

    def actions(self, state: State) -> Iterator[Action]:
        """Everything that may happen next."""
        scope = self.scope
        if scope.slow is None:
            for channel, _ in state.network:
                yield Action("deliver", channel)
        else:
            yield from self._deliveries(state)
        writer = self.clients[state.clients[0]]
        if writer.takes_entries:
            if len(state.frames) < scope.entries:
                yield Action("add")
            if scope.closes:
                yield Action("close")
        # Clients of one kind are alike: the first of them begins first.
        recoverers = state.clients[1 : scope.recoveries + 1]
        if -1 in recoverers:
            yield Action("recover", 1 + recoverers.index(-1))
        readers = state.clients[scope.recoveries + 1 :]
        if -1 in readers:
            yield Action("look", 1 + scope.recoveries + readers.index(-1))
        if state.crashes:
            for index, bookie in enumerate(state.bookies):
                if bookie.up:
                    yield Action("crash", index)
        if state.losses:
            yield from self._losses(state)

    def _deliveries(self, state: State) -> Iterator[Action]:
        """The oldest message of the channels that are not slow, and any of those that are."""
        for channel, _ in state.network:
            if channel not in state.slow:
                yield Action("deliver", channel)
                if state.slow_left:
                    yield Action("hold", channel)
                break
        for channel in state.slow:
            yield Action("deliver", channel)

    def _losses(self, state: State) -> Iterator[Action]:
        """Each request, or its answer, of which a client may believe that it is lost."""
        seen = set()
        for number, _ in state.network:
            channel = self.channels[number // 2]
            if number // 2 not in seen and channel.kind not in ("choose", "length", "look"):
                seen.add(number // 2)
                if self.clients[state.clients[channel.client]].listens(channel):
                    yield Action("lose", number)

    def after(self, state: State, action: Action) -> State:
        """The state after something happened. Raises Broken if that breaks a promise."""
        draft = _Draft(self, state)
        kind = action.kind
        if kind == "deliver":
            draft.deliver(action.number)
        elif kind == "add":
            machine = self.clients[state.clients[0]].machine
            assert isinstance(machine, AppendMachine)
            draft.frames = (*state.frames, machine.last_add_confirmed)
            draft.event(0, Append((ENTRY_BYTES,)))
        elif kind == "close":
            draft.event(0, Close())
        elif kind in ("recover", "look"):
            draft.begin(kind, action.number)
        elif kind == "hold":
            draft.slow.append(action.number)
            draft.slow_left -= 1
        elif kind == "crash":
            draft.bookies[action.number] = state.bookies[action.number]._replace(up=False)
            draft.crashes -= 1
        else:
            draft.losses -= 1
            draft.lose(action.number)
        return draft.state()


class _Draft:
    """A state being changed by one action."""

    def __init__(self, world: World, state: State) -> None:
        self.world = world
        self.metadata, self.version = state.metadata, state.version
        self.bookies = list(state.bookies)
        self.clients = list(state.clients)
        self.network = dict(state.network)
        self.frames = state.frames
        self.confirmed = state.confirmed
        self.crashes, self.losses = state.crashes, state.losses
        self.pushed_at_close = state.pushed_at_close
        self.slow, self.slow_left = list(state.slow), state.slow_left

    def state(self) -> State:
        for number in [n for n in self.network if not n % 2]:
            if self._is_idle(number):
                del self.network[number]
        # Without a bound on slowness the order of sending decides nothing, so it is forgotten.
        in_order = self.world.scope.slow is not None
        network = self.network.items()
        return State(
            self.metadata,
            self.version,
            tuple(self.bookies),
            tuple(self.clients),
            tuple(network if in_order else sorted(network)),
            self.frames,
            self.confirmed,
            self.crashes,
            self.losses,
            self.pushed_at_close,
            tuple(sorted(number for number in self.slow if number in self.network)),
            self.slow_left,
        )

    def _is_idle(self, number: int) -> bool:
        """Whether requests can change nothing any more, wherever and whenever they arrive."""
        world = self.world
        channel = world.channels[number // 2]
        if world.clients[self.clients[channel.client]].listens(channel):
            return False
        message = world.messages[self.network[number][0]]
        if isinstance(message, (AskLast, Read)):
            bookie = self._bookie(message.bookie_id)[1]
            return bookie.fenced or not bookie.up or not message.fence
        if isinstance(message, Store):
            bookie = self._bookie(message.bookie_id)[1]
            return not bookie.up or (bookie.fenced and not message.recovery)
        return False

    # -- clients -----------------------------------------------------------------------------------

    def begin(self, kind: str, index: int) -> None:
        """A client reads the metadata and starts."""
        self._took(index, self.world.started(kind, index, self.metadata, self.version))

    def event(self, index: int, event: Event) -> None:
        """A client takes in an event."""
        self._event(index, self.world.message_number(event))

    def _event(self, index: int, number: int) -> None:
        event = self.world.messages[number]
        assert not isinstance(event, Request), "a client takes in events only"
        self._took(index, self.world.clients.step(self.clients[index], number, event))

    def _took(self, index: int, step: Step) -> None:
        world = self.world
        if step.problem:
            raise Broken(f"client {index} breaks a rule of its own: {step.problem}")
        self.clients[index] = step.client
        if step.confirmed >= 0:
            self._confirm(step.confirmed)
        shell = world.clients[step.client]
        if isinstance(shell.machine, LastConfirmedRead) and shell.machine.result is not None:
            self._looked(shell.machine.result)
        for number in [n for n in self.network if n % 2]:
            channel = world.channels[number // 2]
            if channel.client == index and not shell.listens(channel):
                del self.network[number]
        for number, message_number in world.numbers_of(step):
            self.network[number] = (*self.network.get(number, ()), message_number)
            if isinstance(world.messages[message_number], Look):
                self._answer_what_stays(number)

    def _answer_what_stays(self, number: int) -> None:
        """A look at metadata that are not OPEN is answered at once: they never will be again (rule
        P6), and what the writer could do meanwhile it can do before it hears of the fence."""
        if self.world.metadata[self.metadata].state is not LedgerState.OPEN:
            self.deliver(number)
            self.deliver(number + 1)

    def _put(self, number: int, message: Request | Event) -> None:
        message_number = self.world.message_number(message)
        self.network[number] = (*self.network.get(number, ()), message_number)

    def _confirm(self, last: int) -> None:
        if last <= self.confirmed:
            raise Broken(f"I4: entry {last} is confirmed after {self.confirmed}")
        if self.pushed_at_close >= 0 and last >= self.pushed_at_close:
            raise Broken(f"I8: entry {last} was added after the ledger closed, and acknowledged")
        self.confirmed = last

    def _looked(self, result: int) -> None:
        value = self.world.metadata[self.metadata]
        proved = max(self.confirmed, value.last_entry_id)
        if result > proved:
            raise Broken(f"I5: a reader takes {result} as confirmed; it is {proved}")

    # -- messages ----------------------------------------------------------------------------------

    def _take(self, number: int) -> int:
        first, *rest = self.network.pop(number)
        if rest:
            self.network[number] = tuple(rest)
        return first

    def deliver(self, number: int) -> None:
        """The first message of a channel arrives."""
        message_number = self._take(number)
        channel = self.world.channels[number // 2]
        if number % 2:
            self._event(channel.client, message_number)
            return
        message = self.world.messages[message_number]
        for answer in self._answers(message, channel, number):
            shell = self.world.clients[self.clients[channel.client]]
            if shell.listens(channel):
                self._put(number + 1, answer)

    def _answers(self, message: Request | Event, channel: Channel, number: int) -> list[Event]:
        match message:
            case Store():
                return self._store(message, channel, number)
            case AskLast():
                return [self._ask_last(message)]
            case Read():
                return self._read(message)
            case AskLength():
                return self._ask_length(message, number)
            case Choose():
                return [self._choose(message)]
            case Look():
                return [MetadataRead(self.world.metadata[self.metadata])]
            case CompareAndSet():
                return [self._compare_and_set(message)]
        raise AssertionError(message)

    def lose(self, number: int) -> None:
        """A client learns that there is no answer to a request, or to one that was answered."""
        channel = self.world.channels[number // 2]
        index, bookie_index = channel.client, channel.bookie_index
        shell = self.world.clients[self.clients[index]]
        self.network.pop(number | 1, None)
        if channel.kind == "store":
            bookie_id = shell.lanes[bookie_index][0]
            self.event(index, AddFailed(bookie_index, bookie_id, BookieStatus.TIMEOUT))
        elif channel.kind == "last":
            self.event(index, LastConfirmedAnswer(bookie_index, BookieStatus.TIMEOUT, EntryId(-1)))
        elif channel.kind == "read":
            first = EntryId(shell.reads[bookie_index, channel.lane].first)
            self.event(index, ReadEnded(bookie_index, channel.lane, BookieStatus.TIMEOUT, first))
        else:  # metadata: the client reads them again
            self.network.pop(number & ~1, None)
            value = self.world.metadata[self.metadata]
            self.event(index, MetadataConflict(value, self.version))

    # -- bookies -----------------------------------------------------------------------------------

    def _bookie(self, name: BookieId) -> tuple[int, Bookie]:
        index = self.world.index(name)
        return index, self.bookies[index]

    def _store(self, message: Store, channel: Channel, number: int) -> list[Event]:
        index, bookie = self._bookie(message.bookie_id)
        status = BookieStatus.OK
        if not bookie.up:
            status = BookieStatus.UNAVAILABLE
        elif (bookie.fenced or index == self.world.scope.liar) and not message.recovery:
            status = BookieStatus.FENCED
        bookie_index = channel.bookie_index
        if status is not BookieStatus.OK:
            self.network.pop(number, None)  # a refused appender takes nothing more
            return [AddFailed(bookie_index, message.bookie_id, status)]
        known = [self.frames[entry_id] for entry_id in message.entry_ids]
        self.bookies[index] = bookie._replace(
            entries=bookie.entries.union(message.entry_ids),
            last_add_confirmed=max(bookie.last_add_confirmed, *known),
            knows_ledger=True,
        )
        return [AddAcknowledged(bookie_index, message.bookie_id, EntryId(message.entry_ids[-1]))]

    def _fence(self, index: int, *, fence: bool) -> None:
        if fence:
            self.bookies[index] = self.bookies[index]._replace(fenced=True)

    def _ask_last(self, message: AskLast) -> Event:
        index, bookie = self._bookie(message.bookie_id)
        if not bookie.up:
            return LastConfirmedAnswer(message.bookie_index, BookieStatus.UNAVAILABLE, EntryId(-1))
        self._fence(index, fence=message.fence)
        status = BookieStatus.OK if bookie.knows_ledger else BookieStatus.NO_SUCH_LEDGER
        return LastConfirmedAnswer(message.bookie_index, status, EntryId(bookie.last_add_confirmed))

    def _read(self, message: Read) -> list[Event]:
        index, bookie = self._bookie(message.bookie_id)
        bookie_index, lane, entry_id = message.bookie_index, message.lane, message.first
        if not bookie.up:
            return [ReadEnded(bookie_index, lane, BookieStatus.UNAVAILABLE, EntryId(entry_id))]
        self._fence(index, fence=message.fence)
        events: list[Event] = []
        while entry_id in bookie.entries:
            entry_id += message.stride
        if entry_id > message.first:
            events.append(EntriesRead(bookie_index, lane, EntryId(entry_id - message.stride)))
        absent = BookieStatus.NO_SUCH_ENTRY if bookie.knows_ledger else BookieStatus.NO_SUCH_LEDGER
        return [*events, ReadEnded(bookie_index, lane, absent, EntryId(entry_id))]

    def _ask_length(self, message: AskLength, number: int) -> list[Event]:
        _, bookie = self._bookie(message.bookies[0])
        if bookie.up and message.entry_id in bookie.entries:
            entry_id = message.entry_id
            return [LengthRead(ENTRY_BYTES * (entry_id + 1), EntryId(self.frames[entry_id]))]
        if len(message.bookies) == 1:
            return [LengthUnknown(NoSuchEntryError("nobody has it"))]
        self._put(number, message._replace(bookies=message.bookies[1:]))
        return []

    # -- metadata ----------------------------------------------------------------------------------

    def _choose(self, message: Choose) -> Event:
        """A bookie that is no member, one that never failed first; else the failed one, if up."""
        named = zip(self.world.names, self.bookies, strict=True)
        up = [name for name, bookie in named if bookie.up]
        free = [name for name in up if name not in message.members]
        free.sort(key=message.avoided.__contains__)
        failed = dict(message.failed)
        replacements: dict[int, BookieId] = {}
        for bookie_index in message.indexes:
            if free:
                replacements[bookie_index] = free.pop(0)
            elif failed.get(bookie_index) in up:
                replacements[bookie_index] = failed[bookie_index]
        return BookiesChosen(replacements)

    def _compare_and_set(self, message: CompareAndSet) -> Event:
        old, new = self.world.metadata[self.metadata], message.metadata
        if message.version != self.version:
            return MetadataConflict(old, self.version)
        check_change(old, new, self.confirmed)
        if new.is_closed and not old.is_closed:
            self.pushed_at_close = len(self.frames)
        self.metadata = self.world.metadata_number(new)
        self.version += 1
        return MetadataWritten(new, self.version)
