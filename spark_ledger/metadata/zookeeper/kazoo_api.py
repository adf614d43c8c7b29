"""The part of kazoo that this package uses, as types: kazoo itself has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, TypeVar, overload

T_co = TypeVar("T_co", covariant=True)


class Stat(Protocol):
    """What the server says about a node beside its data."""

    @property
    def version(self) -> int: ...
    @property
    def cversion(self) -> int:
        """Grows by one with each child that comes or goes."""

    @property
    def ephemeralOwner(self) -> int:
        """The session that the node ends with; 0 for a node that stays."""


class Result(Protocol[T_co]):
    """The answer to one request, once there is one. kazoo's threads fill it."""

    @property
    def exception(self) -> BaseException | None: ...
    @property
    def value(self) -> T_co: ...

    def rawlink(self, callback: Callable[[Result[T_co]], None]) -> None:
        """Call back when it is filled: from a kazoo thread, or at once if it is filled already."""

    def get(self, *, timeout: float) -> T_co:
        """Wait for the answer. Raises its exception, or ``Handler.timeout_exception``."""


class Event(Protocol):
    """What a watch reports. A type of NONE reports the state of the connection, not a node."""

    @property
    def type(self) -> str: ...


class Transaction(Protocol):
    """Operations that happen together or not at all."""

    def check(self, path: str, version: int) -> None: ...
    def create(self, path: str, value: bytes) -> None: ...
    def set_data(self, path: str, value: bytes, version: int) -> None: ...
    def delete(self, path: str, version: int) -> None: ...

    def commit_async(self) -> Result[list[object]]:
        """Send it. The answer has one item per operation, an exception where it failed."""


class Handler(Protocol):
    """How kazoo runs its threads."""

    @property
    def timeout_exception(self) -> type[Exception]: ...


class Client(Protocol):
    """``kazoo.client.KazooClient``. Its methods may be called from any thread."""

    @property
    def connected(self) -> bool: ...
    @property
    def last_zxid(self) -> int:
        """The last change that any answer has named."""

    @property
    def handler(self) -> Handler: ...
    def start(self, timeout: float) -> None: ...
    @property
    def client_id(self) -> tuple[int, bytes] | None:
        """Session id and password; None without a connection."""

    @property
    def client_state(self) -> str: ...

    def add_listener(self, listener: Callable[[str], None]) -> None: ...
    def start_async(self) -> object: ...
    def stop(self) -> None: ...
    def command(self, cmd: bytes) -> str:
        """The server's answer to one of its four-letter words."""

    def close(self) -> None: ...

    def sync_async(self, path: str) -> Result[str]: ...
    def get_async(self, path: str) -> Result[tuple[bytes, Stat]]: ...
    @overload
    def get_children_async(
        self, path: str, watch: Callable[[Event], None] | None = None
    ) -> Result[list[str]]: ...
    @overload
    def get_children_async(
        self,
        path: str,
        watch: Callable[[Event], None] | None = None,
        *,
        include_data: Literal[True],
    ) -> Result[tuple[list[str], Stat]]: ...
    def exists_async(
        self, path: str, watch: Callable[[Event], None] | None = None
    ) -> Result[Stat | None]: ...
    def create_async(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False
    ) -> Result[str]: ...
    def set_async(self, path: str, value: bytes, version: int) -> Result[Stat]: ...
    def delete_async(self, path: str, version: int) -> Result[bool]: ...
    def transaction(self) -> Transaction: ...
