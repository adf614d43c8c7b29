"""``ledger bookie``: run, prepare and question one bookie. The server itself is another package."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import click

from spark_ledger.cli.arguments.settings import Command, Settings, common_options
from spark_ledger.cli.show.output import age_text, print_json, print_table, size_text


def config_option(command: Command) -> Command:
    return click.option(
        "--config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        required=True,
        help="TOML file of the bookie; conf/bookie.toml explains every key.",
    )(command)


def become_server(*arguments: str, program: str = "bookie_server") -> NoReturn:
    """Replace this process by the server: signals and the exit code are then the server's own."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", program, *arguments])  # noqa: S606


@click.group()
def group() -> None:
    """Run, prepare and question one bookie."""


@group.command()
@config_option
@click.option("--format", "format_", is_flag=True, help="Make a new bookie if there is none yet.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
def run(config: Path, format_: bool, log_level: str) -> None:
    """Run a bookie until SIGTERM; its exit code says why it stopped."""
    become_server(
        "--config", str(config), "--log-level", log_level, *(["--format"] if format_ else [])
    )


@group.command("format")
@config_option
def format_bookie(config: Path) -> None:
    """Make a new bookie: an identity in its empty directories and in the cluster's metadata."""
    become_server("--config", str(config), "--log-level", "warning", "--format-only")


@group.command()
@config_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def relocate(config: Path, yes: bool) -> None:
    """Say that the directories were moved: they are the bookie's now, and no other copy is.

    Needed after directories were copied to another disk or path. It is refused while the bookie is
    registered, and for a copy that is older than the bookie's last start.
    """
    if not yes:
        click.confirm(
            f"The directories named in {config} become the bookie's. Every other copy of them, the "
            "original included, is refused from then on. Go on?",
            abort=True,
        )
    become_server("--config", str(config), "--log-level", "warning", "--relocate")


@group.command()
@click.argument("path", type=click.Path(exists=True, file_okay=False))
@click.option(
    "--repair",
    is_flag=True,
    help="List what is damaged as lacking: the bookie asks others for it once it serves.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def check(path: str, repair: bool, as_json: bool) -> None:
    """Verify all that the journal or ledger directory PATH of a stopped bookie holds.

    Changes nothing without --repair. Exit status 0: all is whole; 1: something is damaged or
    lacking; 2: it is in use, or no such directory.
    """
    flags = ["--repair"] * repair + ["--json"] * as_json
    become_server("check", path, *flags, program="bookie_server.checking")


@group.command()
@click.argument("path", type=click.Path(exists=True, dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each block.")
def dump(path: str, as_json: bool) -> None:
    """List the blocks of one log of a ledger directory, and whether each is whole.

    Changes nothing. Exit status 1: a block is damaged.
    """
    become_server("dump", path, *(["--json"] * as_json), program="bookie_server.checking")


@group.command()
@click.argument("bookie_id")
@common_options
@click.pass_obj
def status(settings: Settings, bookie_id: str) -> None:
    """Ask a running bookie how it is."""
    from spark_ledger.cli.inspection import describe_bookie

    info, words = describe_bookie(settings.uri(), bookie_id)
    if settings.as_json:
        print_json({"address": info.address, "rack": info.rack, **words._asdict()})
        return
    print_table(
        ("", ""),
        (
            ("bookie", words.bookie_id),
            ("cluster", words.cluster_id),
            ("state", words.state),
            ("address", info.address),
            ("admin", info.admin_address),
            ("rack", info.rack),
            ("version", words.version),
            ("up for", timedelta(seconds=int(words.uptime_s))),
            ("ledgers", words.ledgers),
            ("journal", size_text(words.journal_bytes)),
            ("entry logs", size_text(words.entry_log_bytes)),
            ("free", size_text(words.free_bytes)),
            ("verified", _verified(words.scrubbed_at)),
            ("damaged", f"{words.damaged} blocks found, {words.lacking} await copies"),
        ),
    )


def _verified(scrubbed_at: float) -> str:
    """When all that is stored had been read and verified."""
    return f"{age_text(round(scrubbed_at * 1000))} ago" if scrubbed_at else "not yet as a whole"
