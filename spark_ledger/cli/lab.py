"""``ledger lab``: ways to replicate a log, side by side on simulated servers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from spark_ledger.cli.arguments.settings import Settings, common_options
from spark_ledger.cli.show.output import Advance, print_json, print_table, progress
from spark_ledger.errors import ConfigurationError

if TYPE_CHECKING:
    from spark_ledger.lab.runs import Outcome
    from spark_ledger.lab.scenarios import Scenario
    from spark_ledger.lab.timelines import Run
    from spark_ledger.lab.world import World

PICTURES: Final = "lab-pictures"
"""Where scenarios that are named are drawn, if nobody says where."""
_RUNS_FOR_A_PROCESS: Final = 100
"""Fewer runs end before another process has imported what it needs."""


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
_wide = click.option("--wide", is_flag=True, help="Also who sent how much, and what was copied.")


@group.command()
@click.argument("scenario")
@_protocols
@_seed
@_wide
@click.option(
    "--picture",
    default="",
    metavar="FILE",
    help="Draw it: .svg shows each value's wait and loss, .png what every server had and when.",
)
@common_options
@click.pass_obj
def run(
    settings: Settings,
    scenario: str,
    protocols: tuple[str, ...],
    seed: int,
    wide: bool,
    picture: str,
) -> None:
    """Run one scenario for every protocol."""
    from spark_ledger.lab.timelines import SHOWN, require_matplotlib

    if picture.endswith(".png"):
        require_matplotlib()
        protocols = protocols or SHOWN
    elif picture and not picture.endswith(".svg"):
        raise ConfigurationError(f"a picture is an .svg or a .png, not {picture}")
    wanted = _wanted((scenario,), protocols, seed)
    _compare(settings, wanted._replace(paths=(picture,) if picture else ()), wide=wide)


@group.command()
@click.option(
    "--scenario", default="", callback=_names, metavar="NAME,...", help="Only these (else all)."
)
@_protocols
@_seed
@_wide
@click.option(
    "--pictures",
    metavar="DIRECTORY",
    help="Draw each scenario here, as run does: SVG, and PNG if matplotlib is installed. "
    f"Without it scenarios that are named are drawn in {PICTURES}; '' draws none.",
)
@common_options
@click.pass_obj
def compare(
    settings: Settings,
    scenario: tuple[str, ...],
    protocols: tuple[str, ...],
    seed: int,
    wide: bool,
    pictures: str | None,
) -> None:
    """Run every scenario for every protocol."""
    from spark_ledger.lab.timelines import is_installed

    wanted = _wanted(scenario, protocols, seed)
    if pictures is None:
        pictures = PICTURES if scenario and not settings.as_json else ""
    paths: tuple[str, ...] = ()
    if pictures:
        kinds = ("svg", "png") if is_installed() else ("svg",)
        paths = tuple(str(Path(pictures, "{}." + kind)) for kind in kinds)
        try:
            Path(pictures).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"cannot write {pictures}: {error.strerror}") from error
    _compare(settings, wanted._replace(paths=paths), wide=wide)


@group.command()
@click.argument("scenario")
@click.option("--protocol", default="", metavar="NAME", help="Else that of the story, or a ledger.")
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
    """Tell one run step by step: each fault and decision, and what every server knew then.

    SCENARIO is a scenario, a .toml file with one, or a story such as kafka.truncation: a scenario
    with the protocol that it is about, and what to look for.
    """
    from spark_ledger.lab.explanation import STORIES, moments
    from spark_ledger.lab.protocols import PROTOCOLS

    story = STORIES.get(scenario)
    if story is None and "." in scenario and not scenario.endswith(".toml"):
        _known("story", (scenario,), tuple(STORIES))
    protocol = protocol or (story.protocol if story else "bookkeeper-3-3-2")
    _known("protocol", (protocol,), tuple(PROTOCOLS))
    chosen = _scenario(story.scenario if story else scenario)
    if messages:
        _draw_messages(chosen, protocol, seed, messages, from_s, ms / 1e3)
        return
    found, outcome = moments(chosen, protocol, seed)
    if settings.as_json:
        for moment in found:
            hosts = [host._asdict() for host in moment.hosts]
            print_json({**moment._asdict(), "hosts": hosts})
        return
    click.echo(f"{chosen.name}: {chosen.what}; {protocol}, seed {seed}\n")
    click.echo(f"{story.look if story else ''}\n\n{_STEP}\n".lstrip())
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
        f"{outcome.acknowledged} of {outcome.sent} values were acknowledged, and {outcome.lost} of "
        f"these are lost. The longest time without an acknowledgement: {outcome.longest_gap_ms:g} "
        "ms."
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
                    figure.shown,
                    "yes" if figure.holds() else "NO",
                )
                for claim, figure in figures
            ),
        )
    if not all(claim.holds() for claim in CLAIMS):
        click.get_current_context().exit(1)


_STEP: Final = (
    "Each step: what happened, and how all stood then. entries: in a server's log, also in its "
    "memory; synced: of these, on its disk."
)


def _scenario(name: str) -> Scenario:
    from spark_ledger.lab.scenario_files import find

    return find(name)


class _Wanted(NamedTuple):
    """What is to be run and drawn."""

    scenarios: tuple[Scenario, ...]
    protocols: tuple[str, ...]
    seed: int
    everything: bool
    """A timeline shows all protocols, because somebody named them."""
    paths: tuple[str, ...] = ()
    """Of the pictures: {} in them is the scenario's name."""


def _wanted(scenarios: tuple[str, ...], protocols: tuple[str, ...], seed: int) -> _Wanted:
    from spark_ledger.lab.protocols import PROTOCOLS
    from spark_ledger.lab.scenarios import SCENARIOS

    return _Wanted(
        tuple(map(_scenario, scenarios or SCENARIOS)),
        _known("protocol", protocols, tuple(PROTOCOLS)),
        seed,
        bool(protocols),
    )


def _compare(settings: Settings, wanted: _Wanted, *, wide: bool) -> None:
    """Run and show."""
    found: list[list[Outcome]] = []
    with progress("running", len(wanted.scenarios) * len(wanted.protocols)) as advance:
        found.extend(_run_all(wanted, advance))
    if settings.as_json:
        for outcome in chain.from_iterable(found):
            print_json(outcome._asdict())
        return
    for scenario, outcomes in zip(wanted.scenarios, found, strict=True):
        click.echo(f"{scenario.name}: {scenario.what} (seed {wanted.seed})")
        _show(outcomes, wide=wide)
        for path in wanted.paths:
            click.echo(f"drawn: {path.format(scenario.name)}")
        click.echo()


def _run_all(wanted: _Wanted, advance: Advance) -> Iterator[list[Outcome]]:
    """Each scenario's outcomes. Many are shared out among all cores."""
    each = [wanted._replace(scenarios=(scenario,)) for scenario in wanted.scenarios]
    cores = min(os.cpu_count() or 1, len(each))
    if cores == 1 or len(wanted.scenarios) * len(wanted.protocols) < _RUNS_FOR_A_PROCESS:
        for one in each:
            yield _run_one(one, advance)
        return
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        for outcomes in pool.map(_run_one, each):
            advance(len(wanted.protocols))
            yield outcomes


def _run_one(wanted: _Wanted, advance: Advance = lambda _steps=1: None) -> list[Outcome]:
    """Run one scenario for all protocols, and draw it."""
    from spark_ledger.lab.runs import run
    from spark_ledger.lab.timelines import Recorder

    (scenario,) = wanted.scenarios
    outcomes: list[Outcome] = []
    drawn: list[Run] = []
    for protocol in wanted.protocols:
        recorder = Recorder()
        watch = recorder.record if wanted.paths else _nothing
        outcome, world = run(scenario, protocol, wanted.seed, watch=watch)
        outcomes.append(outcome)
        if wanted.paths:  # else its world is not kept
            drawn.append((outcome, world, recorder))
        advance()
    title = f"{scenario.name}: {scenario.what} (seed {wanted.seed})"
    for path in wanted.paths:
        _draw(title, drawn, path.format(scenario.name), everything=wanted.everything)
    return outcomes


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


def _show(outcomes: list[Outcome], *, wide: bool) -> None:
    columns = [*_COLUMNS, *(_WIDE if wide else ())]
    print_table(
        ("protocol", *(f"{name}#" for name, _ in columns), "decisions"),
        (
            (
                each.protocol,
                *(cell(each) for _, cell in columns),
                ", ".join(f"{kind} {count}" for kind, count in each.decisions.items()),
            )
            for each in outcomes
        ),
    )


def _seconds(ms: float | None) -> str:
    return "never" if ms is None else f"{ms / 1e3:.2f}"


_COLUMNS: Final[tuple[tuple[str, Callable[[Outcome], object]], ...]] = (
    ("acked", lambda each: each.acknowledged),
    ("lost", lambda each: each.lost),
    ("doubled", lambda each: each.doubled),
    ("reordered", lambda each: each.reordered),
    ("stale", lambda each: each.stale),
    ("p50_ms", lambda each: each.p50_ms),
    ("p99_ms", lambda each: each.p99_ms),
    ("gap_ms", lambda each: each.longest_gap_ms),
    ("short_s", lambda each: _seconds(each.short_ms)),
    ("messages", lambda each: each.messages_per_entry),
    ("kb", lambda each: f"{each.bytes_per_entry / 1e3:.2f}"),
)
_WIDE: Final[tuple[tuple[str, Callable[[Outcome], object]], ...]] = (
    ("client_kb", lambda each: f"{each.client_bytes_per_entry / 1e3:.2f}"),
    ("server_kb", lambda each: f"{each.server_bytes_per_entry / 1e3:.2f}"),
    ("copied_kb", lambda each: each.copied_bytes // 1_000),
    ("rebuild_s", lambda each: _seconds(each.rebuild_ms)),
    ("truncated", lambda each: each.truncated),
    ("second_holds", lambda each: each.second_holds),
)
"""What ``--wide`` adds."""
