"""``ledger lab``: ways to replicate a log, side by side on simulated servers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spark_ledger.cli.arguments.settings import Settings, common_options
from spark_ledger.cli.show.output import print_json, print_table, progress
from spark_ledger.errors import ConfigurationError

if TYPE_CHECKING:
    from spark_ledger.lab.runs import Outcome
    from spark_ledger.lab.scenarios import Scenario
    from spark_ledger.lab.timelines import Run
    from spark_ledger.lab.world import World


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
    "--picture",
    default="",
    metavar="FILE",
    help="Draw it: .svg shows each value's wait and loss, .png what every server had and when.",
)
@common_options
@click.pass_obj
def run(
    settings: Settings, scenario: str, protocols: tuple[str, ...], seed: int, picture: str
) -> None:
    """Run one scenario for every protocol."""
    from spark_ledger.lab.timelines import SHOWN, require_matplotlib

    if picture.endswith(".png"):
        require_matplotlib()
        protocols = protocols or SHOWN
    elif picture and not picture.endswith(".svg"):
        raise ConfigurationError(f"a picture is an .svg or a .png, not {picture}")
    _compare(settings, (scenario,), protocols, seed, (picture,) if picture else ())


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
    help="Draw each scenario here, as run does: SVG, and PNG if matplotlib is installed.",
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
    from spark_ledger.lab.timelines import is_installed

    paths: tuple[str, ...] = ()
    if pictures:
        kinds = ("svg", "png") if is_installed() else ("svg",)
        paths = tuple(str(Path(pictures, "{}." + kind)) for kind in kinds)
        try:
            Path(pictures).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"cannot write {pictures}: {error.strerror}") from error
    _compare(settings, scenario, protocols, seed, paths)


@group.command()
@click.argument("scenario")
@click.option("--protocol", default="bookkeeper-3-3-2", show_default=True, metavar="NAME")
@_seed
@click.option("--step", is_flag=True, help="Wait for the return key after each step.")
@click.option("--messages", default="", metavar="FILE", help="Draw its messages instead: an .svg.")
@click.option("--from", "from_s", type=float, help="Where that begins (else at the first fault).")
@click.option("--ms", type=click.FloatRange(1), default=50, show_default=True, help="How long.")
@common_options
@click.pass_obj
def explain(
    settings: Settings,
    scenario: str,
    protocol: str,
    seed: int,
    step: bool,
    messages: str,
    from_s: float | None,
    ms: float,
) -> None:
    """Tell one run step by step: each fault and decision, and what every server knew then."""
    from spark_ledger.lab.explanation import moments
    from spark_ledger.lab.protocols import PROTOCOLS
    from spark_ledger.lab.scenarios import DRAWN, SCENARIOS

    scenarios = {**SCENARIOS, DRAWN.name: DRAWN}
    _known("scenario", (scenario,), tuple(scenarios))
    _known("protocol", (protocol,), tuple(PROTOCOLS))
    if messages:
        _draw_messages(scenarios[scenario], protocol, seed, messages, from_s, ms / 1e3)
        return
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


def _draw_messages(
    scenario: Scenario, protocol: str, seed: int, path: str, from_s: float | None, for_s: float
) -> None:
    from spark_ledger.lab.diagrams import diagram
    from spark_ledger.lab.runs import run

    world = run(scenario, protocol, seed, traced=True)[1]
    if from_s is None:
        faults = [each.at for each in world.events if each.is_fault]
        from_s = (faults[0] if faults else scenario.pace.from_s) - for_s / 5
    title = f"{protocol} in {scenario.name} (seed {seed}): messages from {from_s:.4g} s on"
    _write(path, diagram(title, world, from_s, from_s + for_s))


@group.command()
@click.option("--schedules", type=click.IntRange(1), default=20, show_default=True)
@click.option("--first", type=int, default=1, show_default=True, help="The first seed.")
@_protocols
@common_options
@click.pass_obj
def explore(settings: Settings, schedules: int, first: int, protocols: tuple[str, ...]) -> None:
    """Run protocols with faults drawn from many seeds. Exit 1: a promise did not hold."""
    from spark_ledger.lab import exploration
    from spark_ledger.lab.protocols import LOSE_NOTHING, PROTOCOLS

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
    from spark_ledger.lab.claims import CLAIMS
    from spark_ledger.lab.claims_page import page

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
    paths: tuple[str, ...],
) -> None:
    """Run and show. ``paths`` of the pictures: {} in them is the scenario's name."""
    from spark_ledger.lab.protocols import PROTOCOLS
    from spark_ledger.lab.runs import run
    from spark_ledger.lab.scenarios import SCENARIOS
    from spark_ledger.lab.timelines import Recorder

    wanted = _known("scenario", scenarios, tuple(SCENARIOS))
    compared = _known("protocol", protocols, tuple(PROTOCOLS))
    outcomes: list[Outcome] = []
    with progress("running", len(wanted) * len(compared)) as advance:
        for name in wanted:
            drawn: list[Run] = []
            for protocol in compared:
                recorder = Recorder()
                watch = recorder.record if paths else _nothing
                outcome, world = run(SCENARIOS[name], protocol, seed, watch=watch)
                outcomes.append(outcome)
                if paths:  # else its world is not kept
                    drawn.append((outcome, world, recorder))
                advance()
            title = f"{name}: {SCENARIOS[name].what} (seed {seed})"
            for path in paths:
                _draw(title, drawn, path.format(name), everything=bool(protocols))
    if settings.as_json:
        for outcome in outcomes:
            print_json(outcome._asdict())
        return
    for name in wanted:
        click.echo(f"{name}: {SCENARIOS[name].what} (seed {seed})")
        _show([outcome for outcome in outcomes if outcome.scenario == name])
        click.echo()


def _nothing(_world: World) -> None:
    """Nobody watches."""


def _draw(title: str, drawn: Sequence[Run], path: str, *, everything: bool) -> None:
    """An SVG of all runs; or a PNG, which has room for few protocols."""
    from spark_ledger.lab import pictures, timelines

    if path.endswith(".svg"):
        _write(path, pictures.picture(title, [run[:2] for run in drawn]))
        return
    shown = [run for run in drawn if everything or run[0].protocol in timelines.SHOWN]
    try:
        timelines.draw(title, shown, Path(path))
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from error


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
