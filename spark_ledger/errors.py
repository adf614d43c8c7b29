"""Every error this project raises, split by what the caller must do next.

LedgerError
├── RetryableError              try again: to repeat the request is safe
│   ├── BookieUnavailableError      a bookie cannot be reached, or answers too late
│   ├── MetadataUnavailableError    ZooKeeper cannot be reached; nothing was changed
│   ├── TooManyRequestsError        a bound on work in flight was met; nothing was added
│   ├── RecoveryError               too few bookies answer or store: the ledger is not closed
│   └── RewriteError                what was written fits no more: write the rows again
├── OutcomeUnknownError         it may or may not have happened: look before you repeat
│   └── AddOutcomeUnknownError      an add was in flight at close (also LedgerClosedError)
├── FencedError                 another client took the ledger over: stop writing to it
│   └── LedgerTakenOverError        ... and closed it already (also LedgerClosedError)
├── ConflictError               somebody else changed it first
│   └── BookieReplacedError         another process is, or was meanwhile, the same bookie
├── NotFoundError               it does not exist
│   ├── NoSuchLedgerError
│   ├── NoSuchEntryError
│   ├── NoSuchStreamError
│   └── ReadBeyondConfirmedError    the entry is not confirmed yet
├── UnauthorizedError           wrong password, key or token
├── LedgerClosedError           the handle or the ledger is closed
├── MalformedMessageError       a peer sent bytes that are not a message: it is broken or hostile
├── CorruptionError             stored bytes are damaged: stop, and repair
│   ├── MetadataRestoredError       ZooKeeper went back in time: run `ledger cluster restored`
│   ├── DigestMismatchError         no replica of an entry has a valid digest
│   └── DataLossError               data a reader asked for are gone for good
├── ConfigurationError          the request itself is wrong: change it
│   ├── EntryTooLargeError
│   └── SchemaMismatchError
└── NotEnoughBookiesError       fewer usable bookies than the ledger needs
    └── EnsembleLostError           ... while adds were in flight, whose outcome is unknown

Nothing of grpc, kazoo, LMDB or Arrow leaks out: a boundary raises one of these and keeps the
cause (``raise ... from``). Every class pickles by its message, because Spark carries errors
between processes.
"""

from __future__ import annotations


class LedgerError(Exception):
    """Base of every error here. ``outcome_unknown`` says that the request may have taken effect."""

    outcome_unknown: bool = False
    retryable: bool = False


class RetryableError(LedgerError):
    """The same request may succeed later, and to repeat it is safe."""

    retryable = True


class BookieUnavailableError(RetryableError):
    """A bookie cannot be reached, refused the connection, or did not answer in time."""


class MetadataUnavailableError(RetryableError):
    """ZooKeeper cannot be reached; no metadata was changed."""


class TooManyRequestsError(RetryableError):
    """A bound on requests or bytes in flight was met; send less at once."""


class RecoveryError(RetryableError):
    """A ledger cannot be recovered now: too few bookies answer, or can store its end.

    The ledger is not closed and has lost nothing; opening it again is safe. What recovery has done
    stays: the ledger is IN_RECOVERY, bookies are fenced, and entries were written back. The old
    writer can therefore add nothing more.
    """


class RewriteError(RetryableError):
    """Segments cannot be committed as they were written, because the stream has changed meanwhile.

    Nothing was committed. An append that is repeated writes its rows again, and fits; a commit of
    the same segments never does.
    """


class OutcomeUnknownError(LedgerError):
    """The request may or may not have taken effect: read the state before repeating it."""

    outcome_unknown = True


class LedgerClosedError(LedgerError):
    """The handle was closed, or the ledger was closed by another client."""


class AddOutcomeUnknownError(OutcomeUnknownError, LedgerClosedError):
    """An add was in flight when its ledger closed; only opening with ``recover=True`` tells."""


class FencedError(LedgerError):
    """Another client has fenced the ledger: its writer may add nothing more.

    Adds that were in flight may or may not be part of the ledger. From opening with recovery:
    another client changed the ensemble meanwhile; open the ledger again.
    """

    outcome_unknown = True


class LedgerTakenOverError(FencedError, LedgerClosedError):
    """Another client has fenced, recovered and closed the ledger; its end is final."""


class ConflictError(LedgerError):
    """Somebody else changed the same thing first; read it again and decide."""


class BookieReplacedError(ConflictError):
    """Another process is, or was since this one started, the same bookie: this one may not serve.

    Raised in bookies only.
    """


class NotFoundError(LedgerError):
    """The ledger, entry, stream or node does not exist."""


class NoSuchLedgerError(NotFoundError):
    """No ledger with this id exists: it was never created, or it was deleted."""


class NoSuchEntryError(NotFoundError):
    """Every replica says that it does not hold the entry."""


class NoSuchStreamError(NotFoundError):
    """No stream with this name exists."""


class ReadBeyondConfirmedError(NotFoundError):
    """The range ends above the last add confirmed; refresh or tail the reader to see more."""


class UnauthorizedError(LedgerError):
    """The password, key or token is wrong."""


class MalformedMessageError(LedgerError):
    """Bytes that a peer sent are not a message of the protocol; nothing in them was used.

    The fault is the sender's, never the caller's: a client reports the bookie's answer as an I/O
    error and asks another replica; a bookie ends the stream of the client.
    """


class CorruptionError(LedgerError):
    """Stored bytes are damaged; nothing damaged was delivered."""


class MetadataRestoredError(CorruptionError):
    """The metadata of a ledger or a stream are not those that this process has seen, or later ones:
    ZooKeeper was restored from a backup."""


class DigestMismatchError(CorruptionError):
    """Replicas answered, but none with bytes that match their digest."""


class DataLossError(CorruptionError):
    """Data that a reader asked for no longer exist."""


class ConfigurationError(LedgerError):
    """An option, argument or file is wrong; the message names it and what is allowed."""


class EntryTooLargeError(ConfigurationError):
    """An entry or a row is larger than the limit."""


class SchemaMismatchError(ConfigurationError):
    """The data do not have the schema of the stream; the message names the field."""


class NotEnoughBookiesError(LedgerError):
    """Fewer usable bookies than the ledger's ensemble, or ack quorum, needs."""


class EnsembleLostError(NotEnoughBookiesError):
    """Too many bookies of an open ledger failed; adds in flight may or may not be part of it."""

    outcome_unknown = True
