"""``ledger lab``: ways to replicate a log, side by side on simulated servers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from spark_ledger.cli.arguments.settings import Settings, common_options
from spark_ledger.cli.show.output import print_json, print_table, progress
from spark_ledger.errors import ConfigurationError

if TYPE_CHECKING:
    from spark_ledger.lab.runs import Outcome


@click.group()
def group() -> None:
    """Compare ways to replicate a log on simulated servers."""


def _names(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in value.split(",") if name.strip())


_protocols = click.option(
    "--protocols",
    default="",
    callback=_names,
    metavar="NAME,...",
    help="Only these (else all).",
)
_seed = click.option("--seed", type=int, default=1, show_default=True, help="Decides everything.")


@group.command()
@click.argument("scenario")
@_protocols
@_seed
@click.option(
    "--picture", default="", metavar="FILE", help="Draw each value's wait and loss here (SVG)."
)
@common_options
@click.pass_obj
def run(
    settings: Settings, scenario: str, protocols: tuple[str, ...], seed: int, picture: str
) -> None:
    """Run one scenario for every protocol."""
    _compare(settings, (scenario,), protocols, seed, picture)


@group.command()
@click.option(
    "--scenario", default="", callback=_names, metavar="NAME,...", help="Only these (else all)."
)
@_protocols
@_seed
@common_options
@click.pass_obj
def compare(
    settings: Settings, scenario: tuple[str, ...], protocols: tuple[str, ...], seed: int
) -> None:
    """Run every scenario for every protocol."""
    _compare(settings, scenario, protocols, seed)


@group.command()
@click.option(
    "--write", "path", default="", metavar="FILE", help="Write the page of all claims here."
)
@common_options
@click.pass_obj
def claims(settings: Settings, path: str) -> None:
    """Test what is said about these protocols. Exit 1: a run refutes something."""
    from spark_ledger.lab.claims import CLAIMS, page

    figures = [(claim, figure) for claim in CLAIMS for figure in claim.figures]
    with progress("running", len(figures)) as advance:
        for _, figure in figures:
            figure.measure()
            advance()
    if path:
        _write(path, page())
    elif settings.as_json:
        for claim in CLAIMS:
            print_json({"claim": claim.statement, "holds": claim.holds(), "source": claim.source})
    else:
        print_table(
            ("claim...", "scenario", "protocol", "claimed", "measured#", "holds"),
            (
                (
                    claim.statement if figure is claim.figures[0] else "",
                    figure.scenario,
                    figure.protocol,
                    figure.expected,
                    f"{figure.measure():g}",
                    "yes" if figure.holds() else "NO",
                )
                for claim, figure in figures
            ),
        )
    if not all(claim.holds() for claim in CLAIMS):
        click.get_current_context().exit(1)


def _compare(
    settings: Settings,
    scenarios: tuple[str, ...],
    protocols: tuple[str, ...],
    seed: int,
    path: str = "",
) -> None:
    from spark_ledger.lab.pictures import picture
    from spark_ledger.lab.runs import PROTOCOLS, run
    from spark_ledger.lab.scenarios import SCENARIOS

    wanted = _known("scenario", scenarios, tuple(SCENARIOS))
    compared = _known("protocol", protocols, tuple(PROTOCOLS))
    runs = []
    with progress("running", len(wanted) * len(compared)) as advance:
        for name in wanted:
            for protocol in compared:
                outcome, world = run(SCENARIOS[name], protocol, seed)
                # A picture is of one scenario; else its world is not kept.
                runs.append((outcome, world if path else None))
                advance()
    outcomes = [outcome for outcome, _ in runs]
    if path:
        drawn = [(outcome, world) for outcome, world in runs if world is not None]
        _write(path, picture(f"{wanted[0]}: {SCENARIOS[wanted[0]].what} (seed {seed})", drawn))
    if settings.as_json:
        for outcome in outcomes:
            print_json(outcome._asdict())
        return
    for name in wanted:
        click.echo(f"{name}: {SCENARIOS[name].what} (seed {seed})")
        _show([outcome for outcome in outcomes if outcome.scenario == name])
        click.echo()


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from error


def _known(kind: str, names: tuple[str, ...], known: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in known:
            raise ConfigurationError(f"no {kind} {name!r}: choose from {', '.join(known)}")
    return names or known


def _show(outcomes: list[Outcome]) -> None:
    numbers = "acked# lost# doubled# reordered# p50_ms# p99_ms# gap_ms# messages#"
    print_table(
        ("protocol", *numbers.split(), "decisions"),
        (
            (
                each.protocol,
                each.acknowledged,
                each.lost,
                each.doubled,
                each.reordered,
                each.p50_ms,
                each.p99_ms,
                each.longest_gap_ms,
                each.messages_per_entry,
                ", ".join(f"{kind} {count}" for kind, count in each.decisions.items()),
            )
            for each in outcomes
        ),
    )
