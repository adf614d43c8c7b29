"""Options that every command takes, and how a command gets its client."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, TypeVar

import click

from spark_ledger.errors import ConfigurationError

if TYPE_CHECKING:
    from spark_ledger.client.blocking import LedgerConnection
    from spark_ledger.stream.blocking import StreamConnection

METADATA_VARIABLE: Final = "SPARK_LEDGER_METADATA"

Command = TypeVar("Command", bound=Callable[..., object])
"""A function that click makes a command of. An option, put on it, gives the same function back."""


@dataclass(slots=True)
class Settings:
    """What the common options said; a later one on the line wins."""

    metadata: str = ""
    as_json: bool = False
    debug: bool = False

    def uri(self) -> str:
        """The cluster's metadata URI. Raises ConfigurationError if none was given."""
        uri = self.metadata or os.environ.get(METADATA_VARIABLE, "")
        if not uri:
            raise ConfigurationError(
                f"no cluster given: use --metadata zk://host:2181/ledgers or set "
                f"{METADATA_VARIABLE} (ledger local up starts a cluster and prints its URI)"
            )
        return uri

    def connect(self) -> LedgerConnection:
        """The cluster's ledgers, as a context manager. Streams are left out: they load Arrow,
        which takes longer than most commands on ledgers."""
        uri = self.uri()
        from spark_ledger.client.blocking import LedgerConnection

        return LedgerConnection.connect(uri)

    def connect_streams(self) -> StreamConnection:
        """The cluster's ledgers and streams, as a context manager."""
        uri = self.uri()
        import spark_ledger

        return spark_ledger.connect(uri)


def _remember(name: str) -> Callable[[click.Context, click.Parameter, object], None]:
    def callback(context: click.Context, _parameter: click.Parameter, value: object) -> None:
        if value:
            setattr(context.ensure_object(Settings), name, value)

    return callback


def common_options(command: Command) -> Command:
    """Add --metadata, --json and --debug; they may stand anywhere on the line."""
    options = (
        click.option(
            "--metadata",
            metavar="URI",
            expose_value=False,
            callback=_remember("metadata"),
            help=f"Metadata of the cluster, zk://host:2181/ledgers (else ${METADATA_VARIABLE}).",
        ),
        click.option(
            "--json",
            is_flag=True,
            expose_value=False,
            callback=_remember("as_json"),
            help="Print JSON for scripts.",
        ),
        click.option(
            "--debug",
            is_flag=True,
            expose_value=False,
            callback=_remember("debug"),
            help="Show the traceback of an error.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def password_option(command: Command) -> Command:
    """Add --password, as ``password: bytes``; a secret need not stand on the command line."""
    return click.option(
        "--password",
        default="",
        envvar="SPARK_LEDGER_PASSWORD",
        metavar="SECRET",
        callback=lambda _context, _parameter, value: read_secret(value),
        help="The ledger's password: env:NAME, file:PATH, or the text itself.",
    )(command)


def standard_input() -> BinaryIO:
    """The bytes of standard input. Wrong usage if the shell has closed it."""
    if sys.stdin is None:
        raise click.UsageError("standard input is closed: name a file with --file")
    return sys.stdin.buffer


def read_secret(text: str) -> bytes:
    """The secret that ``env:NAME`` or ``file:PATH`` points to, else the text itself.

    Raises ConfigurationError if it is not there, or empty: a ledger would be made without any.
    """
    kind, _, name = text.partition(":")
    if kind == "env":
        if name not in os.environ:
            raise ConfigurationError(f"--password env:{name}: this variable is not set")
        secret = os.environ[name].encode(errors="surrogateescape")  # its bytes, as in a file
    elif kind == "file":
        try:
            secret = Path(name).read_bytes().rstrip(b"\r\n")
        except OSError as error:
            raise ConfigurationError(
                f"--password file:{name} cannot be read: {error.strerror}"
            ) from error
    else:
        return text.encode(errors="surrogateescape")
    if not secret:
        raise ConfigurationError(f"--password {text} is empty: no password is there")
    return secret
