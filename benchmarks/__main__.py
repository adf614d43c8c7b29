"""Command: ``python -m benchmarks raw|spark|curves|all [--json FILE] [--quick] [--peers]``."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.page import write_page
from benchmarks.paths import scratch
from benchmarks.peers.jars import BOOKKEEPER, KAFKA, SPARK_KAFKA, fetched, require_java
from benchmarks.pictures import require_matplotlib
from benchmarks.rows import Row, write_json
from benchmarks.steps import Step
from benchmarks.table import print_rows
from spark_ledger.errors import LedgerError

_MESSAGES = Console(stderr=True)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Measure this system, and with --peers Apache BookKeeper and Kafka, in one run.

    Everything runs on this machine, on loopback, and is removed at the end. Figures depend on the
    machine and on what else runs on it: compare only within one run.
    """


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--peers", is_flag=True, help="Measure BookKeeper and Kafka as well."),
        click.option("--quick", is_flag=True, help="One short round of each case."),
        click.option(
            "--json",
            "json_file",
            type=click.Path(dir_okay=False, writable=True, path_type=Path),
            help="Write the rows to this file, too.",
        ),
    ):
        command = option(command)
    return command


@main.command()
@_options
@click.option("--limit", is_flag=True, help="Measure what gRPC, a file and a sync give, as well.")
def raw(json_file: Path | None, quick: bool, peers: bool, limit: bool) -> None:
    """Appends, reads and failover through the client, without Spark."""
    from benchmarks import raw as bench

    steps = bench.steps(quick=quick, peers=peers, limit=limit)
    _run("raw", lambda: steps, json_file, peers=peers)


@main.command()
@_options
@click.option("--limit", is_flag=True, help="Measure a source and a sink that do nothing, as well.")
@click.option(
    "--profile",
    is_flag=True,
    help="Say instead where the processor time goes, beside ends that do nothing.",
)
@click.option(
    "--floor",
    is_flag=True,
    help="Say instead what a micro-batch of one row takes, beside ends that do nothing.",
)
def spark(
    json_file: Path | None, quick: bool, peers: bool, limit: bool, profile: bool, floor: bool
) -> None:
    """Real flights through Spark: streaming write, batch read, streaming copy."""
    from benchmarks import spark_flights as bench
    from benchmarks import spark_floor, spark_profile

    if profile + floor + (peers or limit) > 1:
        raise click.UsageError("--profile, --floor and --peers with --limit go one at a time")
    if profile:
        steps = spark_profile.steps(quick=quick)
    elif floor:
        steps = spark_floor.steps(quick=quick)
    else:
        steps = bench.steps(quick=quick, peers=peers, limit=limit)
    _run("spark", lambda: steps, json_file, peers=peers)


_PAGE = click.option(
    "--page",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write the table and pictures of the curves into this Markdown page.",
)


@main.command()
@_options
@_PAGE
@click.option("--limit", is_flag=True, help="Measure what gRPC, a file and a sync give, as well.")
def curves(
    json_file: Path | None, quick: bool, peers: bool, limit: bool, page: Path | None
) -> None:
    """Appends by entries in flight, by size and by ledgers, and reads by size."""
    from benchmarks import curves as bench

    steps = bench.steps(quick=quick, peers=peers, limit=limit)
    _run("raw", lambda: steps, json_file, peers=peers, page=page)


@main.command(name="all")
@_options
@_PAGE
def everything(json_file: Path | None, quick: bool, peers: bool, page: Path | None) -> None:
    """The curves, failover and start, and the Spark benchmark."""
    from benchmarks import curves as curves_bench
    from benchmarks import raw as raw_bench
    from benchmarks import spark_flights as spark_bench

    def steps() -> Iterable[Step]:
        yield from curves_bench.steps(quick=quick, peers=peers, limit=False)
        yield from raw_bench.other_steps(quick=quick, peers=peers)
        yield from spark_bench.steps(quick=quick, peers=peers)

    _run("all", steps, json_file, peers=peers, page=page)


def _run(
    name: str,
    steps: Callable[[], Iterable[Step]],
    json_file: Path | None,
    *,
    peers: bool,
    page: Path | None = None,
) -> None:
    """Measure, print and write. If something fails, print one sentence and exit with code 1."""
    rows: list[Row] = []
    failure = ""
    # On SIGTERM as well, the servers that were started are stopped.
    signal.signal(signal.SIGTERM, _stop)
    try:
        if page is not None:
            require_matplotlib()
        with scratch():
            if peers:
                _fetch_peers(name)
            _measure(list(steps()), rows)
    except LedgerError as error:
        failure = str(error)
    except KeyboardInterrupt:
        failure = "stopped; what was started is gone"
    if json_file is not None and not failure:
        write_json(rows, json_file)
    console = Console(width=None if sys.stdout.isatty() else 140)
    if rows:
        print_rows(rows, console)
        console.print(f"load average {os.getloadavg()[0]:.1f} at the end, {os.cpu_count()} cores")
    if page is not None and not failure:
        write_page(rows, page, " ".join(["python -m benchmarks", *sys.argv[1:]]))
    if failure:
        _MESSAGES.print(f"benchmarks: {failure}", style="red", markup=False, highlight=False)
        raise SystemExit(1)


def _fetch_peers(name: str) -> None:
    require_java()
    wanted = {"raw": [BOOKKEEPER, KAFKA], "spark": [KAFKA, SPARK_KAFKA]}
    for jars in wanted.get(name, [BOOKKEEPER, KAFKA, SPARK_KAFKA]):
        with _MESSAGES.status(f"jars of {jars.folder}"):
            fetched(jars)


def _measure(steps: list[Step], rows: list[Row]) -> None:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    # Drawn twice a second: drawing costs time on the machine under measurement.
    progress = Progress(
        *columns, console=_MESSAGES, refresh_per_second=2, disable=not _MESSAGES.is_terminal
    )
    with progress:
        task = progress.add_task("", total=len(steps))
        for step in steps:
            progress.update(task, description=step.title)
            rows.extend(step.measure())
            progress.advance(task)


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
