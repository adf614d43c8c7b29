"""``ledger local``: ZooKeeper and bookies on this machine that run until ``ledger local down``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from spark_ledger.cli.arguments.amounts import count_from, size_of
from spark_ledger.cli.arguments.repair import LOST_BOOKIE_DELAY
from spark_ledger.cli.arguments.settings import METADATA_VARIABLE, Command, Settings, common_options
from spark_ledger.cli.show.output import print_json, print_table, progress
from spark_ledger.errors import BookieUnavailableError
from spark_ledger.limits import MIB

if TYPE_CHECKING:
    from spark_ledger.local import ClusterStatus

HEAP_VARIABLE: Final = "SPARK_LEDGER_ZOOKEEPER_HEAP"


def default_directory() -> Path:
    """Below XDG_STATE_HOME, for data that a user keeps but does not edit."""
    state_home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state_home) / "spark-ledger" / "local"


def directory_option(command: Command) -> Command:
    return click.option(
        "--directory",
        type=click.Path(file_okay=False, path_type=Path),
        default=default_directory,
        show_default="~/.local/state/spark-ledger/local",
        help="Data and logs of the cluster.",
    )(command)


@click.group()
def group() -> None:
    """Run a ZooKeeper and bookies on this machine, for development."""


@group.command()
@click.option("--bookies", type=count_from(1), default=3, show_default=True)
@click.option(
    "--racks",
    type=count_from(1),
    metavar="N",
    help="Deal the bookies out to so many racks; see ledger cluster placement.",
)
@click.option(
    "--zookeeper-heap",
    type=size_of(16 * MIB),
    envvar=HEAP_VARIABLE,
    show_envvar=True,
    metavar="SIZE",
    help="Memory of ZooKeeper, which keeps all metadata there: 512m, 2g. Default: an eighth of the "
    "machine's, at least 256m, at most 4g.",
)
@LOST_BOOKIE_DELAY
@directory_option
@common_options
@click.pass_obj
def up(
    settings: Settings,
    bookies: int,
    racks: int | None,
    zookeeper_heap: int | None,
    lost_bookie_delay: float,
    directory: Path,
) -> None:
    """Start a cluster that keeps running. It goes on with the data of the last one, if any.

    A bookie that refuses its directories says why. The others run meanwhile, and it is started
    again every 10 to 30 s; the exit status is 1.
    """
    from spark_ledger import local

    with progress("starting ZooKeeper and bookies", None):
        cluster = local.up(
            directory,
            bookies,
            zookeeper_heap_bytes=zookeeper_heap,
            lost_bookie_delay_s=lost_bookie_delay,
            racks=racks or 0,
        )
    show(settings, cluster)
    if not settings.as_json:
        click.echo(f"\nexport {METADATA_VARIABLE}={cluster.uri}")
    refused = [bookie.name for bookie in cluster.bookies if not bookie.running]
    if refused:
        raise BookieUnavailableError(
            f"{', '.join(refused)} did not start, for the reasons above; the rest runs, and what "
            "did not is started again every 10 to 30 s"
        )


@group.command()
@directory_option
@common_options
@click.pass_obj
def down(settings: Settings, directory: Path) -> None:
    """Stop the cluster; its data stay."""
    from spark_ledger import local

    with progress("stopping", None):
        was_running = local.down(directory)
    if settings.as_json:
        print_json({"stopped": was_running, "directory": str(directory)})
    else:
        click.echo("stopped" if was_running else f"no cluster runs in {directory}")


@group.command()
@directory_option
@common_options
@click.pass_obj
def status(settings: Settings, directory: Path) -> None:
    """Show the cluster; exit status 1 if it does not run."""
    from spark_ledger import local

    cluster = local.status(directory)
    show(settings, cluster)
    if not cluster.running:
        click.get_current_context().exit(1)


def show(settings: Settings, cluster: ClusterStatus) -> None:
    """Print a cluster with its processes."""
    if settings.as_json:
        import msgspec

        click.echo(msgspec.json.encode(cluster))
        return
    if not cluster.running:
        click.echo(f"no cluster runs in {cluster.directory} (ledger local up starts one)")
        return
    processes = [process for process in (cluster.zookeeper, *cluster.bookies) if process]
    print_table(
        ("process", "state", "address", "admin", "pid#"),
        (
            (p.name, "running" if p.running else "dead", p.address, p.admin_address, p.pid)
            for p in processes
        ),
    )
    click.echo(f"\ndirectory  {cluster.directory}\nmetadata   {cluster.uri}")
    for process in processes:
        if process.note:
            click.echo(f"{process.name:<11}{process.note}")
