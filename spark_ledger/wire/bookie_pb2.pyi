from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OK: _ClassVar[Status]
    NO_SUCH_LEDGER: _ClassVar[Status]
    NO_SUCH_ENTRY: _ClassVar[Status]
    FENCED: _ClassVar[Status]
    READ_ONLY: _ClassVar[Status]
    UNAUTHORIZED: _ClassVar[Status]
    TOO_MANY_REQUESTS: _ClassVar[Status]
    UNKNOWN_STATE: _ClassVar[Status]
    BAD_REQUEST: _ClassVar[Status]
    IO_ERROR: _ClassVar[Status]
    WRONG_BOOKIE: _ClassVar[Status]
    STALLED: _ClassVar[Status]
    ENTRY_CONFLICT: _ClassVar[Status]
OK: Status
NO_SUCH_LEDGER: Status
NO_SUCH_ENTRY: Status
FENCED: Status
READ_ONLY: Status
UNAUTHORIZED: Status
TOO_MANY_REQUESTS: Status
UNKNOWN_STATE: Status
BAD_REQUEST: Status
IO_ERROR: Status
WRONG_BOOKIE: Status
STALLED: Status
ENTRY_CONFLICT: Status

class EntryRun(_message.Message):
    __slots__ = ("ledger_id", "first_entry", "entry_ids", "sizes", "frames")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENTRY_FIELD_NUMBER: _ClassVar[int]
    ENTRY_IDS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    first_entry: int
    entry_ids: _containers.RepeatedScalarFieldContainer[int]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    frames: bytes
    def __init__(self, ledger_id: _Optional[int] = ..., first_entry: _Optional[int] = ..., entry_ids: _Optional[_Iterable[int]] = ..., sizes: _Optional[_Iterable[int]] = ..., frames: _Optional[bytes] = ...) -> None: ...

class AddRun(_message.Message):
    __slots__ = ("run", "tag", "access_key", "recovery")
    RUN_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    ACCESS_KEY_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_FIELD_NUMBER: _ClassVar[int]
    run: EntryRun
    tag: int
    access_key: bytes
    recovery: bool
    def __init__(self, run: _Optional[_Union[EntryRun, _Mapping]] = ..., tag: _Optional[int] = ..., access_key: _Optional[bytes] = ..., recovery: _Optional[bool] = ...) -> None: ...

class AppendRequest(_message.Message):
    __slots__ = ("adds",)
    ADDS_FIELD_NUMBER: _ClassVar[int]
    adds: _containers.RepeatedCompositeFieldContainer[AddRun]
    def __init__(self, adds: _Optional[_Iterable[_Union[AddRun, _Mapping]]] = ...) -> None: ...

class AddResult(_message.Message):
    __slots__ = ("tag", "ledger_id", "last_entry", "status", "message")
    TAG_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    tag: int
    ledger_id: int
    last_entry: int
    status: Status
    message: str
    def __init__(self, tag: _Optional[int] = ..., ledger_id: _Optional[int] = ..., last_entry: _Optional[int] = ..., status: _Optional[_Union[Status, str]] = ..., message: _Optional[str] = ...) -> None: ...

class AppendResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[AddResult]
    def __init__(self, results: _Optional[_Iterable[_Union[AddResult, _Mapping]]] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("ledger_id", "first_entry", "last_entry", "stride", "max_bytes", "fence", "access_key")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENTRY_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_FIELD_NUMBER: _ClassVar[int]
    STRIDE_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    ACCESS_KEY_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    first_entry: int
    last_entry: int
    stride: int
    max_bytes: int
    fence: bool
    access_key: bytes
    def __init__(self, ledger_id: _Optional[int] = ..., first_entry: _Optional[int] = ..., last_entry: _Optional[int] = ..., stride: _Optional[int] = ..., max_bytes: _Optional[int] = ..., fence: _Optional[bool] = ..., access_key: _Optional[bytes] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("status", "message", "entry_id", "run")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    status: Status
    message: str
    entry_id: int
    run: EntryRun
    def __init__(self, status: _Optional[_Union[Status, str]] = ..., message: _Optional[str] = ..., entry_id: _Optional[int] = ..., run: _Optional[_Union[EntryRun, _Mapping]] = ...) -> None: ...

class ReadLastConfirmedRequest(_message.Message):
    __slots__ = ("ledger_id", "fence", "access_key", "wait_above", "wait_ms")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    ACCESS_KEY_FIELD_NUMBER: _ClassVar[int]
    WAIT_ABOVE_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    fence: bool
    access_key: bytes
    wait_above: int
    wait_ms: int
    def __init__(self, ledger_id: _Optional[int] = ..., fence: _Optional[bool] = ..., access_key: _Optional[bytes] = ..., wait_above: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class ReadLastConfirmedResponse(_message.Message):
    __slots__ = ("status", "message", "last_add_confirmed", "last_entry", "fenced")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LAST_ADD_CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    status: Status
    message: str
    last_add_confirmed: int
    last_entry: int
    fenced: bool
    def __init__(self, status: _Optional[_Union[Status, str]] = ..., message: _Optional[str] = ..., last_add_confirmed: _Optional[int] = ..., last_entry: _Optional[int] = ..., fenced: _Optional[bool] = ...) -> None: ...

class LedgerConfirmed(_message.Message):
    __slots__ = ("ledger_id", "last_add_confirmed", "access_key")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_ADD_CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    ACCESS_KEY_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    last_add_confirmed: int
    access_key: bytes
    def __init__(self, ledger_id: _Optional[int] = ..., last_add_confirmed: _Optional[int] = ..., access_key: _Optional[bytes] = ...) -> None: ...

class WriteLastConfirmedRequest(_message.Message):
    __slots__ = ("ledger_id", "last_add_confirmed", "access_key", "more")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_ADD_CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    ACCESS_KEY_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    last_add_confirmed: int
    access_key: bytes
    more: _containers.RepeatedCompositeFieldContainer[LedgerConfirmed]
    def __init__(self, ledger_id: _Optional[int] = ..., last_add_confirmed: _Optional[int] = ..., access_key: _Optional[bytes] = ..., more: _Optional[_Iterable[_Union[LedgerConfirmed, _Mapping]]] = ...) -> None: ...

class WriteLastConfirmedResponse(_message.Message):
    __slots__ = ("status", "message", "more")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    status: Status
    message: str
    more: _containers.RepeatedScalarFieldContainer[Status]
    def __init__(self, status: _Optional[_Union[Status, str]] = ..., message: _Optional[str] = ..., more: _Optional[_Iterable[_Union[Status, str]]] = ...) -> None: ...

class ListEntriesRequest(_message.Message):
    __slots__ = ("ledger_id", "access_key", "ledgers", "one_page", "first_entry")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ACCESS_KEY_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_FIELD_NUMBER: _ClassVar[int]
    ONE_PAGE_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENTRY_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    access_key: bytes
    ledgers: bool
    one_page: bool
    first_entry: int
    def __init__(self, ledger_id: _Optional[int] = ..., access_key: _Optional[bytes] = ..., ledgers: _Optional[bool] = ..., one_page: _Optional[bool] = ..., first_entry: _Optional[int] = ...) -> None: ...

class EntryRange(_message.Message):
    __slots__ = ("first_entry", "last_entry")
    FIRST_ENTRY_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_FIELD_NUMBER: _ClassVar[int]
    first_entry: int
    last_entry: int
    def __init__(self, first_entry: _Optional[int] = ..., last_entry: _Optional[int] = ...) -> None: ...

class ListEntriesResponse(_message.Message):
    __slots__ = ("status", "message", "ranges", "ledger_ids", "has_ledgers", "next_entry")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    LEDGER_IDS_FIELD_NUMBER: _ClassVar[int]
    HAS_LEDGERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_ENTRY_FIELD_NUMBER: _ClassVar[int]
    status: Status
    message: str
    ranges: _containers.RepeatedCompositeFieldContainer[EntryRange]
    ledger_ids: _containers.RepeatedScalarFieldContainer[int]
    has_ledgers: bool
    next_entry: int
    def __init__(self, status: _Optional[_Union[Status, str]] = ..., message: _Optional[str] = ..., ranges: _Optional[_Iterable[_Union[EntryRange, _Mapping]]] = ..., ledger_ids: _Optional[_Iterable[int]] = ..., has_ledgers: _Optional[bool] = ..., next_entry: _Optional[int] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("bookie_id", "cluster_id", "version", "state", "ledgers", "journal_bytes", "entry_log_bytes", "free_bytes", "uptime_s", "status", "message", "next_ledger_id", "scrubbed_at", "damaged", "lacking")
    BOOKIE_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENTRY_LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    NEXT_LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    SCRUBBED_AT_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    LACKING_FIELD_NUMBER: _ClassVar[int]
    bookie_id: str
    cluster_id: str
    version: str
    state: str
    ledgers: int
    journal_bytes: int
    entry_log_bytes: int
    free_bytes: int
    uptime_s: float
    status: Status
    message: str
    next_ledger_id: int
    scrubbed_at: float
    damaged: int
    lacking: int
    def __init__(self, bookie_id: _Optional[str] = ..., cluster_id: _Optional[str] = ..., version: _Optional[str] = ..., state: _Optional[str] = ..., ledgers: _Optional[int] = ..., journal_bytes: _Optional[int] = ..., entry_log_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ..., uptime_s: _Optional[float] = ..., status: _Optional[_Union[Status, str]] = ..., message: _Optional[str] = ..., next_ledger_id: _Optional[int] = ..., scrubbed_at: _Optional[float] = ..., damaged: _Optional[int] = ..., lacking: _Optional[int] = ...) -> None: ...
