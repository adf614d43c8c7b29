"""The root of the command line: groups loaded on use, errors turned into one sentence."""

from __future__ import annotations

import difflib
import errno
import importlib
import io
import os
import sys
import traceback
from typing import Final

import click

from spark_ledger.cli.arguments.settings import Settings, common_options
from spark_ledger.errors import (
    BookieUnavailableError,
    ConfigurationError,
    ConflictError,
    CorruptionError,
    FencedError,
    LedgerClosedError,
    LedgerError,
    MalformedMessageError,
    MetadataRestoredError,
    MetadataUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchStreamError,
    NotEnoughBookiesError,
    OutcomeUnknownError,
    ReadBeyondConfirmedError,
    RecoveryError,
    RetryableError,
    UnauthorizedError,
)
from spark_ledger.version import __version__

# Modules are loaded when used: the help of ``ledger`` must not pay for what one group needs.
GROUPS: Final = {
    "local": "Run a ZooKeeper and bookies on this machine, for development.",
    "bookie": "Run, prepare and question one bookie.",
    "cluster": "Show what a cluster holds, say where its copies go, and go on after a restore.",
    "bookies": "List bookies; take one out, empty one, even them out, have them free space.",
    "ledgers": "Look at, write, read and repair ledgers.",
    "streams": "Create, read, truncate and delete streams; say how much is kept.",
    "keeper": "Run the keeper, which ends what dead writers leave, or see how it is.",
    "autorecovery": "Make the copies of lost bookies again, or see how far that is.",
    "lab": "Compare ways to replicate a log on simulated servers.",
}

# The first class that fits says what to do next; an empty text means that the message does.
NEXT_STEPS: Final[tuple[tuple[type[LedgerError], str], ...]] = (
    (MetadataUnavailableError, "try again when ZooKeeper answers"),
    (BookieUnavailableError, "see which bookies are up with: ledger bookies list"),
    (RecoveryError, "the ledger has lost nothing: try again when its bookies are back"),
    (RetryableError, "try again"),
    (NoSuchLedgerError, "see which ledgers exist with: ledger ledgers list"),
    (NoSuchStreamError, "see which streams exist with: ledger streams list"),
    (ReadBeyondConfirmedError, "follow new entries with: ledger ledgers tail"),
    (NoSuchEntryError, "see who holds what with: ledger ledgers show"),
    (UnauthorizedError, "give the ledger's password with --password env:NAME or file:PATH"),
    (
        FencedError,
        "another client took the ledger over: write to a new one, or open it again",
    ),
    (OutcomeUnknownError, "look what has happened before you repeat it"),
    (LedgerClosedError, "write to a new ledger"),
    (ConflictError, "look at the present state, then decide whether to repeat it"),
    (MalformedMessageError, "check the versions of this program and of the bookies"),
    (MetadataRestoredError, ""),
    (CorruptionError, "see which bookies hold the ledger with: ledger ledgers show"),
    (NotEnoughBookiesError, "see which bookies are up with: ledger bookies list"),
    (ConfigurationError, ""),
)

DISK_FAULTS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class LazyGroup(click.Group):
    """A group whose members are modules of this package, each with a click group ``group``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(GROUPS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in GROUPS:
            near = difflib.get_close_matches(cmd_name, GROUPS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {cmd_name!r}.{hint}", ctx)
        module = importlib.import_module(f"spark_ledger.cli.{cmd_name}")
        command = module.group
        assert isinstance(command, click.Group)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(GROUPS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ledger")
@common_options
def root() -> None:
    """Work with a cluster of bookies and the ledgers and streams on it."""


def sentence(error: LedgerError) -> str:
    """What went wrong and what to do next, on one line."""
    message = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    step = next((text for kind, text in NEXT_STEPS if isinstance(error, kind)), "")
    return f"{message}; {step}." if step else f"{message}."


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 only on success, 2 for wrong usage, 1 for all else."""
    settings = Settings()
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name that its encoding lacks is shown escaped
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = root.main(arguments, prog_name="ledger", standalone_mode=False, obj=settings)
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except LedgerError as error:
        if settings.debug:
            traceback.print_exc()
        click.echo(f"error: {sentence(error)}", err=True)
        status = 2 if isinstance(error, ConfigurationError) else 1
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        status = 130
    except BrokenPipeError:  # the reader of our output (head, less) has gone
        give_up_output()
        status = 1
    except OSError as error:
        if error.filename is not None:  # of a file that a command reads or writes
            if settings.debug:
                traceback.print_exc()
            click.echo(f"error: {error.filename}: {error.strerror}.", err=True)
        elif error.errno in DISK_FAULTS:
            click.echo(f"error: the output cannot be written: {error.strerror}.", err=True)
            give_up_output()
        else:
            raise
        status = 1
    sys.exit(status if isinstance(status, int) else 0)


def give_up_output() -> None:
    """Nothing more can be written; the interpreter's own flush at exit must not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
