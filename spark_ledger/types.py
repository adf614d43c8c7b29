"""The values that cross layers: ids, quorums, ledger metadata, entries, positions, statuses.

Nothing here does I/O. Every class is frozen; constructors refuse values that break a rule of
the protocol, so a value that exists is valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum, StrEnum
from typing import Final, Generic, NamedTuple, NewType, NoReturn, TypeAlias, TypeVar

from spark_ledger.errors import ConfigurationError
from spark_ledger.limits.entries import ENSEMBLE_SIZE_MAX

LedgerId = NewType("LedgerId", int)
EntryId = NewType("EntryId", int)
BookieId = NewType("BookieId", str)

INCARNATION_BYTES: Final = 16
"""Of a ledger's incarnation: drawn at random, so no two ledgers ever have the same."""

ReplicaHint: TypeAlias = int | tuple[BookieId, ...]
"""Which replica a read asks first: a number that differs between readers, or bookies by name, the
preferred one first."""

TAG_STREAM_ID: Final = "stream_id"
"""The key of ``custom_metadata`` that ledgers of streams have, and no application's."""

NO_ENTRY: Final = EntryId(-1)
"""Stands for "no entry yet": the last add confirmed of an empty ledger."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """A value read from the metadata store with the version a compare-and-set must name."""

    value: T
    version: int


@dataclass(frozen=True, slots=True)
class Quorums:
    """How a ledger is replicated: E bookies in an ensemble, WQ copies, AQ acknowledgements."""

    ensemble_size: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2

    def __post_init__(self) -> None:
        e, wq, aq = self.ensemble_size, self.write_quorum, self.ack_quorum
        for name, value in (("ensemble_size", e), ("write_quorum", wq), ("ack_quorum", aq)):
            if not isinstance(value, int) or isinstance(value, bool):
                raise ConfigurationError(f"{name} {value!r}: needs a whole number")
        if not e >= wq >= aq >= 1:  # rule P1
            raise ConfigurationError(
                f"ensemble_size {e}, write_quorum {wq}, ack_quorum {aq}: "
                "needs ensemble_size >= write_quorum >= ack_quorum >= 1"
            )
        if e > ENSEMBLE_SIZE_MAX:
            raise ConfigurationError(f"ensemble_size {e}: at most {ENSEMBLE_SIZE_MAX} is allowed")

    def __str__(self) -> str:
        return f"E{self.ensemble_size} WQ{self.write_quorum} AQ{self.ack_quorum}"


class LedgerState(StrEnum):
    """OPEN -> IN_RECOVERY -> CLOSED, or OPEN -> CLOSED; CLOSED is final. Equals its text."""

    OPEN = "open"
    IN_RECOVERY = "in_recovery"
    CLOSED = "closed"


class DigestType(Enum):
    """How entries are protected: CRC32C against damage, HMAC-SHA256 against forgery too."""

    CRC32C = "crc32c"
    HMAC_SHA256 = "hmac-sha256"


class Fragment(NamedTuple):
    """Entries from ``first_entry`` up to the next fragment, and their bookies in index order."""

    first_entry: EntryId
    bookies: tuple[BookieId, ...]


class Ensemble(tuple[BookieId, ...]):
    """The bookies of a fragment in index order. Equals a list of the same names, as users write."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return super().__eq__(tuple(other) if isinstance(other, list) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__


class FragmentList(list[Fragment]):
    """The fragments of a ledger: a list of ``(first_entry, bookies)`` that cannot be changed.

    Users were promised a list; a machine that shares it with them must not see it change. Equals
    a tuple of the same fragments as well.
    """

    __slots__ = ()

    def __init__(self, fragments: Iterable[Fragment]) -> None:
        super().__init__(Fragment(first, Ensemble(bookies)) for first, bookies in fragments)

    def __eq__(self, other: object) -> bool:
        return super().__eq__(list(other) if isinstance(other, tuple) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __reduce__(self) -> tuple[type[FragmentList], tuple[tuple[Fragment, ...]]]:
        return FragmentList, (tuple(self),)

    def _refuse(self, *_given: object, **_named: object) -> NoReturn:
        raise TypeError("the fragments of a ledger cannot be changed here: make a list of them")

    append = extend = insert = remove = pop = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """What the metadata store knows of a ledger.

    ``fragments`` is a ``FragmentList``, whatever sequence it was made from.
    ``last_entry_id`` and ``length`` (payload bytes) are known once the ledger is CLOSED.
    ``incarnation`` is random, and makes this ledger another one than any that had or gets the
    same id; its keys and digests are derived from it (rule P20). Ledgers made by older versions
    have none, and no ``access_key_hash`` unless they have a password. ``owner`` is the connection
    that made the ledger and may append to it (``metadata/owners.py``); older ledgers name none.
    ``creation_token`` tells a creator whose reply was lost that the node it meets is its own.
    """

    ledger_id: LedgerId
    quorums: Quorums
    fragments: Sequence[Fragment]
    state: LedgerState = LedgerState.OPEN
    last_entry_id: EntryId = NO_ENTRY
    length: int = 0
    digest_type: DigestType = DigestType.CRC32C
    access_key_hash: bytes = b""
    creation_time_ms: int = 0
    creation_token: str = ""
    custom_metadata: Mapping[str, str] = field(default_factory=dict)
    incarnation: bytes = b""
    owner: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.fragments, FragmentList):
            object.__setattr__(self, "fragments", FragmentList(self.fragments))
        assert self.fragments and self.fragments[0].first_entry == 0, "first fragment starts at 0"
        previous = -1
        for fragment in self.fragments:
            assert fragment.first_entry > previous, "fragments are in strictly increasing order"
            assert len(fragment.bookies) == self.quorums.ensemble_size, "an ensemble has E members"
            assert len(set(fragment.bookies)) == len(fragment.bookies), "bookies are distinct"
            previous = fragment.first_entry

    @property
    def is_closed(self) -> bool:
        return self.state is LedgerState.CLOSED

    @property
    def has_password(self) -> bool:
        """Only a ledger with a password has HMAC digests."""
        return self.digest_type is DigestType.HMAC_SHA256

    @property
    def last_fragment(self) -> Fragment:
        return self.fragments[-1]

    def with_changes(self, **changes: object) -> LedgerMetadata:
        """A copy with fields replaced; the constructor checks it again."""
        return replace(self, **changes)  # type: ignore[arg-type]


class Entry(NamedTuple):
    """One verified entry. ``length`` counts payload bytes of the ledger up to and with it."""

    ledger_id: LedgerId
    entry_id: EntryId
    payload: bytes
    last_add_confirmed: EntryId
    length: int


class BookieState(StrEnum):
    """What a registered bookie says of its storage.

    READ_ONLY: its disks are full, its last flush failed, or its journal did and its process is
    about to end. It is not chosen for new ledgers and ensemble changes. With full disks it refuses
    adds of writers, and goes on with reads, fences and what a recovery stores.

    Equals its text: ``info.state == "writable"``.
    """

    WRITABLE = "writable"
    READ_ONLY = "readonly"


DEFAULT_RACK: Final = "/default-rack"
"""Where a bookie is that was not told its rack: all such bookies are in one rack."""


@dataclass(frozen=True, slots=True)
class BookieInfo:
    """A registered bookie: who it is, where it answers, what it takes."""

    bookie_id: BookieId
    address: str
    state: BookieState = BookieState.WRITABLE
    rack: str = DEFAULT_RACK
    free_bytes: int = 0
    admin_address: str = ""
    reason: str = ""
    """Why it is read-only, a sentence for people; empty while it is writable."""

    @property
    def id(self) -> BookieId:
        """Short for ``bookie_id``."""
        return self.bookie_id


@dataclass(frozen=True, slots=True)
class PlacementPolicy:
    """Over how many racks and regions a cluster wants the copies of each entry (rule P21).

    ``strict``: where that cannot be had, nothing is placed; else the best there is, and it is said.
    """

    min_racks: int = 1
    """Racks that hold the copies of an entry, at least; as many as copies if those are fewer."""
    min_regions: int = 1
    min_racks_for_durability: int = 1
    """One rack less than this may burn down, and what was acknowledged is still there."""
    min_regions_for_durability: int = 1
    strict: bool = False

    def __post_init__(self) -> None:
        for name in PLACEMENT_MINIMA:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigurationError(f"{name} {value!r}: needs a whole number from 1 on")


PLACEMENT_MINIMA: Final = (
    "min_racks",
    "min_regions",
    "min_racks_for_durability",
    "min_regions_for_durability",
)


class BookieStart(NamedTuple):
    """One start of a bookie: its number, and random letters that tell it from a copy's start."""

    counter: int
    nonce: str


class DirectoryPlace(NamedTuple):
    """Which directory it is: a copy has other inodes, or other times of birth (0: not known)."""

    path: str
    inode: int
    born_ns: int
    cookie_inode: int
    cookie_born_ns: int


class BookieStatus(IntEnum):
    """A bookie's answer to one request. Numbers are those of ``bookie.proto``.

    The last two are never sent: a client's transport reports them when no answer came.
    READ_ONLY says that a disk is full: nothing was stored, and other bookies may have room.
    TOO_MANY_REQUESTS says "busy": nothing was decided, and the same may be asked again later.
    STALLED says that a disk of the bookie has not moved for too long: what it was asked to store
    may become durable yet. ENTRY_CONFLICT says that it holds other bytes under the entry's id.
    """

    OK = 0
    NO_SUCH_LEDGER = 1
    NO_SUCH_ENTRY = 2
    FENCED = 3
    READ_ONLY = 4
    UNAUTHORIZED = 5
    TOO_MANY_REQUESTS = 6
    UNKNOWN_STATE = 7
    BAD_REQUEST = 8
    IO_ERROR = 9
    WRONG_BOOKIE = 10
    STALLED = 11
    ENTRY_CONFLICT = 12
    UNAVAILABLE = 100
    TIMEOUT = 101

    @property
    def is_denial(self) -> bool:
        """Whether this is a definite "I do not hold it". An unknown answer is none (rule P14)."""
        return self in (BookieStatus.NO_SUCH_LEDGER, BookieStatus.NO_SUCH_ENTRY)


class Dlsn(NamedTuple):
    """DistributedLog sequence number: where a row stands in a stream.

    It names the segment, the entry within the segment, and the row within the entry. All three
    count from 0. Tuple order is stream order.
    """

    segment: int
    entry: int = 0
    slot: int = 0
