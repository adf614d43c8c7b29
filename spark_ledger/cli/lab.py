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
@click.option(
    "--pictures",
    default="",
    metavar="DIRECTORY",
    help="Draw each scenario here (SVG), as run does.",
)
@common_options
@click.pass_obj
def compare(
    settings: Settings,
    scenario: tuple[str, ...],
    protocols: tuple[str, ...],
    seed: int,
    pictures: str,
) -> None:
    """Run every scenario for every protocol."""
    if pictures:
        try:
            Path(pictures).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"cannot write {pictures}: {error.strerror}") from error
    _compare(settings, scenario, protocols, seed, str(Path(pictures, "{}.svg")) if pictures else "")


@group.command()
@click.argument("scenario")
@click.option("--protocol", default="bookkeeper-3-3-2", show_default=True, metavar="NAME")
@_seed
@click.option("--step", is_flag=True, help="Wait for the return key after each step.")
@common_options
@click.pass_obj
def explain(settings: Settings, scenario: str, protocol: str, seed: int, step: bool) -> None:
    """Tell one run step by step: each fault and decision, and what every server knew then."""
    from spark_ledger.lab.explanation import moments
    from spark_ledger.lab.runs import PROTOCOLS
    from spark_ledger.lab.scenarios import DRAWN, SCENARIOS

    scenarios = {**SCENARIOS, DRAWN.name: DRAWN}
    _known("scenario", (scenario,), tuple(scenarios))
    _known("protocol", (protocol,), tuple(PROTOCOLS))
    found, outcome = moments(scenarios[scenario], protocol, seed)
    if settings.as_json:
        for moment in found:
            hosts = [host._asdict() for host in moment.hosts]
            print_json({**moment._asdict(), "hosts": hosts})
        return
    click.echo(f"{scenario}: {scenarios[scenario].what}; {protocol}, seed {seed}\n")
    for moment in found:
        what = ", ".join(moment.what)
        click.echo(f"{moment.at:6.3f} s  {what} ({moment.acknowledged} values acknowledged)")
        print_table(
            ("server", "entries#", "synced#", "knows..."),
            (
                (each.name, each.entries, each.synced, each.knows if each.alive else "down")
                for each in moment.hosts
            ),
        )
        if step:
            click.pause("return: next step")
        click.echo()
    click.echo(
        f"{outcome.acknowledged} of {outcome.sent} values were acknowledged, {outcome.lost} of "
        f"these are lost; the longest time without an acknowledgement was "
        f"{outcome.longest_gap_ms:g} ms"
    )


@group.command()
@click.option("--schedules", type=click.IntRange(1), default=20, show_default=True)
@click.option("--first", type=int, default=1, show_default=True, help="The first seed.")
@_protocols
@common_options
@click.pass_obj
def explore(settings: Settings, schedules: int, first: int, protocols: tuple[str, ...]) -> None:
    """Run protocols with faults drawn from many seeds. Exit 1: a promise did not hold."""
    from spark_ledger.lab import exploration
    from spark_ledger.lab.runs import LOSE_NOTHING, PROTOCOLS

    compared = _known("protocol", protocols, tuple(PROTOCOLS))
    seeds = range(first, first + schedules)
    with progress("running", len(compared) * schedules) as advance:
        found = [exploration.explore(name, seeds, advance) for name in compared]
    if settings.as_json:
        for each in found:
            print_json({**each._asdict(), "holds": each.holds})
    else:
        columns = ["schedules#", "lost_in#", "most_lost#", "stale_in#", "first_seed#", "unacked#"]
        print_table(
            ("protocol", "promises", *columns, "holds..."),
            (
                (
                    each.protocol,
                    "nothing is lost" if each.protocol in LOSE_NOTHING else "",
                    each.schedules,
                    each.lost_in,
                    each.most_lost,
                    each.stale_in,
                    "" if each.first_seed is None else each.first_seed,
                    each.unacknowledged,
                    "yes" if each.holds else f"NO {each.broken[0] if each.broken else ''}",
                )
                for each in found
            ),
        )
    if not all(each.holds for each in found):
        click.get_current_context().exit(1)


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
    """Run and show. ``path`` of the pictures: {} in it is the scenario's name."""
    from spark_ledger.lab.pictures import picture
    from spark_ledger.lab.runs import PROTOCOLS, run
    from spark_ledger.lab.scenarios import SCENARIOS

    wanted = _known("scenario", scenarios, tuple(SCENARIOS))
    compared = _known("protocol", protocols, tuple(PROTOCOLS))
    outcomes: list[Outcome] = []
    with progress("running", len(wanted) * len(compared)) as advance:
        for name in wanted:
            drawn = []
            for protocol in compared:
                outcome, world = run(SCENARIOS[name], protocol, seed)
                outcomes.append(outcome)
                if path:  # else its world is not kept
                    drawn.append((outcome, world))
                advance()
            if path:
                title = f"{name}: {SCENARIOS[name].what} (seed {seed})"
                _write(path.format(name), picture(title, drawn))
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
    numbers = "acked# lost# doubled# reordered# stale# p50_ms# p99_ms# gap_ms# messages#"
    print_table(
        ("protocol", *numbers.split(), "decisions"),
        (
            (
                each.protocol,
                each.acknowledged,
                each.lost,
                each.doubled,
                each.reordered,
                each.stale,
                each.p50_ms,
                each.p99_ms,
                each.longest_gap_ms,
                each.messages_per_entry,
                ", ".join(f"{kind} {count}" for kind, count in each.decisions.items()),
            )
            for each in outcomes
        ),
    )
