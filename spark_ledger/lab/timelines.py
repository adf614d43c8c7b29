"""Timelines of runs, as PNG: a lane for each server, with its entries, watermarks and faults."""

from __future__ import annotations

import importlib.util
import textwrap
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_ledger.errors import ConfigurationError
from spark_ledger.lab.bookies import METADATA, Bookie, Metadata
from spark_ledger.lab.elections import Voter
from spark_ledger.lab.kafka import Broker
from spark_ledger.lab.machines import Machine
from spark_ledger.lab.rocketmq import RocketBroker
from spark_ledger.lab.runs import Outcome
from spark_ledger.lab.scenarios import FROM_S
from spark_ledger.lab.world import Happened, Host, World

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN: Final = ("bookkeeper-3-3-2", "raft", "kafka", "rocketmq-sync", "dledger")
"""One of each kind: what a picture of a scenario shows if nobody names protocols."""

_LOG, _SYNCED, _WATERMARK, _CHARGE = "#9db8d9", "#1f4e8c", "#e07b00", "#2e8b57"
_KEPT, _LOST, _FAULT, _DECISION = "#2e8b57", "#d00000", "#888888", "#2050c0"
_LANE_INCHES: Final = 0.72
_HEAD_INCHES: Final = 0.85
_MARGIN_INCHES: Final = 0.6
"""Above all lanes, for title and key."""
_TITLE_CHARACTERS: Final = 125
"""Of one line."""


class Sample(NamedTuple):
    """One server at a moment."""

    at: float
    alive: bool
    slow: bool
    entries: int
    synced: int
    watermark: int | None
    """Entries that it takes for committed, where the protocol says so to a server."""
    in_charge: bool
    """It leads; or a bookie: it is of the ensemble that is written to."""


class Recorder:
    """Collects what the servers of a run had at each tick. Pass ``record`` to ``runs.run``."""

    def __init__(self) -> None:
        self.samples: dict[str, list[Sample]] = {}

    def record(self, world: World) -> None:
        """Take a sample of every server."""
        ensemble = _ensemble(world)
        for name, host in world.hosts.items():
            if isinstance(host.machine, Voter | Broker | RocketBroker | Bookie):
                sample = _sample(world.loop.now, host, name in ensemble)
                self.samples.setdefault(name, []).append(sample)


def _ensemble(world: World) -> frozenset[str]:
    metadata = world.hosts[METADATA].machine if METADATA in world.hosts else None
    if not isinstance(metadata, Metadata) or not metadata.nodes:
        return frozenset()
    ledger, _version = metadata.nodes[max(metadata.nodes)]
    return frozenset(map(str, ledger.fragments[-1].bookies))


def _sample(now: float, host: Host, is_member: bool) -> Sample:
    alive = host.process.alive
    watermark, in_charge = _office(host.machine)
    return Sample(
        now,
        alive,
        host.slowness > 1.0,
        len(host.store.log),
        host.store.synced,
        watermark if alive else None,
        alive and (in_charge or is_member),
    )


def _office(machine: Machine) -> tuple[int | None, bool]:
    match machine:
        case Voter():
            return machine.commit, machine.role == "leader"
        case Broker():
            return machine.high_watermark, machine.is_leader
        case RocketBroker():
            return None, machine.is_master
        case _:
            return None, False


Run = tuple[Outcome, World, Recorder]


def require_matplotlib() -> None:
    """Raises ConfigurationError if it is not installed: before anything is run."""
    if not is_installed():
        raise ConfigurationError(
            "a timeline (PNG) needs matplotlib: pip install 'spark-ledger[lab]', or name an .svg"
        )


def is_installed() -> bool:
    """Whether matplotlib is there."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(title: str, runs: Sequence[Run], path: Path) -> None:
    """Write the picture of runs of one scenario. Raises OSError."""
    from matplotlib.figure import Figure

    lanes = [1 + len(recorder.samples) for _, _, recorder in runs]
    height = _MARGIN_INCHES + _LANE_INCHES * sum(lanes) + _HEAD_INCHES * len(runs) + 0.6
    end_s = max(_quiet_since(recorder) for _, _, recorder in runs) + 0.5
    figure = Figure(figsize=(12.5, height), dpi=100)
    head = textwrap.fill(title, _TITLE_CHARACTERS)
    figure.text(0.012, 1 - 0.12 / height, head, fontsize=11, fontweight="bold", va="top")
    below = 0.2 * head.count("\n")
    _key(figure.text, height, below)
    top = height - _MARGIN_INCHES - below
    for outcome, world, recorder in runs:
        figure.text(
            0.012,
            (top - 0.45) / height,
            f"{outcome.protocol}:  lost {outcome.lost},  longest gap {outcome.longest_gap_ms:g} ms",
            fontsize=10,
            fontweight="bold",
        )
        top -= _HEAD_INCHES
        block: list[Axes] = []
        for _lane in range(1 + len(recorder.samples)):
            top -= _LANE_INCHES
            box = (0.085, top / height, 0.9, (_LANE_INCHES - 0.08) / height)
            block.append(figure.add_axes(box))
        _frame(block, end_s)
        _clients(block[0], world)
        highest = max(each.entries for samples in recorder.samples.values() for each in samples)
        for axes, (name, samples) in zip(block[1:], recorder.samples.items(), strict=True):
            _server(axes, name, samples, max(1, highest))
        _events(block, world, end_s)
    figure.savefig(path, metadata={"Software": None})


def _quiet_since(recorder: Recorder) -> float:
    """When something changed on a server last."""
    return max(
        after.at
        for samples in recorder.samples.values()
        for before, after in pairwise(samples)
        if after._replace(at=before.at) != before
    )


def _frame(block: Sequence[Axes], end_s: float) -> None:
    """Lanes of one time, which stands below the last of them."""
    seconds = range(int(FROM_S), int(end_s) + 1)
    for axes in block:
        axes.set_xlim(FROM_S - 0.2, end_s)
        axes.tick_params(labelsize=7, length=2)
        axes.set_xticks(list(seconds), [""] * len(seconds))
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    block[-1].set_xticklabels([f"{at} s" for at in seconds])


def _key(text: Callable[..., object], height: float, below: float) -> None:
    """What the colours mean: one line, because the lanes have no room for a box."""
    rows = (
        (
            ("client: how long each value waited, when it was added:", "#333333"),
            ("kept", _KEPT),
            ("lost", _LOST),
            ("  dotted lines:", "#333333"),
            ("faults", _FAULT),
            ("decisions", _DECISION),
        ),
        (
            ("servers: the log's length:", "#333333"),
            ("entries", _LOG),
            ("synced", _SYNCED),
            ("committed, as it knows", _WATERMARK),
            ("bar: it leads, or is in the ensemble", _CHARGE),
            ("grey: down", _FAULT),
            ("yellow: slow", "#b09000"),
        ),
    )
    for number, row in enumerate(rows):
        at = 0.012
        for word, colour in row:
            y = 1 - (0.5 + below + 0.2 * number) / height
            text(at, y, word, color=colour, fontsize=8.5, va="center")
            at += 0.0049 * len(word) + 0.012


def _clients(axes: Axes, world: World) -> None:
    """Each acknowledged value: when it was added, and how long it waited."""
    for is_lost, colour in ((False, _KEPT), (True, _LOST)):
        values = [value for value in world.acknowledged if (value in world.lost) == is_lost]
        sent = [world.sent[value] for value in values]
        waits = [1e3 * (world.acknowledged[value] - world.sent[value]) for value in values]
        axes.plot(sent, waits, "|", color=colour, markersize=4, markeredgewidth=0.8)
    axes.set_yscale("log")
    axes.set_ylim(0.5, 20_000)
    axes.set_yticks([1, 100, 10_000], ["1 ms", "100 ms", "10 s"])
    axes.minorticks_off()
    _name(axes, "client")
    axes.grid(visible=True, axis="y", color="#eeeeee")


def _name(axes: Axes, name: str) -> None:
    axes.text(-0.052, 0.5, name, transform=axes.transAxes, fontsize=9, ha="right", va="center")


def _server(axes: Axes, name: str, samples: Sequence[Sample], highest: int) -> None:
    """The log over time: a mark for each entry, and lines for what is synced and committed."""
    times = [each.at for each in samples]
    marks = [
        (after.at, entry)
        for before, after in pairwise(samples)
        for entry in range(before.entries, after.entries)
    ]
    axes.plot(*zip(*marks, strict=True) if marks else ([], []), ".", color=_LOG, markersize=2.5)
    axes.plot(times, [each.synced for each in samples], color=_SYNCED, linewidth=0.9)
    known = [None if each.watermark is None else float(each.watermark) for each in samples]
    drawn = [float("nan") if each is None else each for each in known]
    axes.plot(times, drawn, color=_WATERMARK, linewidth=1.1, linestyle=(0, (4, 2)))
    for colour, has in (
        ("#d8d8d8", lambda each: not each.alive),
        ("#fff3b0", lambda each: each.alive and each.slow),
    ):
        for first, last in _spans(samples, has):
            axes.axvspan(first, last, color=colour, linewidth=0, zorder=0)
    for first, last in _spans(samples, lambda each: each.in_charge):
        axes.axvspan(first, last, 0.0, 0.07, color=_CHARGE, linewidth=0)
    axes.set_ylim(-0.1 * highest, 1.08 * highest)
    axes.set_yticks([0, highest])
    _name(axes, name)


def _spans(samples: Sequence[Sample], has: Callable[[Sample], bool]) -> list[tuple[float, float]]:
    """From when to when something held."""
    spans: list[tuple[float, float]] = []
    since: float | None = None
    for each in samples:
        if has(each) and since is None:
            since = each.at
        elif not has(each) and since is not None:
            spans.append((since, each.at))
            since = None
    return spans if since is None else [*spans, (since, samples[-1].at)]


def _events(block: Sequence[Axes], world: World, end_s: float) -> None:
    """Lines through all lanes of a run; above them the words, where there is room: decisions in
    the upper row, faults in the lower one."""
    free = {True: 0.0, False: 0.0}
    for at, who, what, is_fault in _together(world.events):
        if not FROM_S - 0.2 <= at <= end_s:
            continue
        colour = _FAULT if is_fault else _DECISION
        for axes in block:
            axes.axvline(at, color=colour, linewidth=0.8, linestyle=":", zorder=1)
        if at < free[is_fault]:
            continue
        label = f"{who} {what}"
        block[0].annotate(
            label,
            (at, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(1, 2 if is_fault else 11),
            textcoords="offset points",
            fontsize=7,
            color=colour,
        )
        free[is_fault] = at + 0.0052 * len(label) * (end_s - FROM_S)


def _together(events: Sequence[Happened]) -> list[Happened]:
    """What happened to several at once, as one."""
    found: list[Happened] = []
    for each in events:
        if found and (found[-1].at, found[-1].what) == (each.at, each.what):
            names = dict.fromkeys((*found[-1].who.split(), *each.who.split()))
            found[-1] = each._replace(who=" ".join(names))
        else:
            found.append(each)
    return found
