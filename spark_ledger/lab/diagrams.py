"""A space-time diagram of a run, as SVG: a lane for each host, a line for each message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from itertools import pairwise
from typing import Final

from spark_ledger.lab.world import Happened, Sent, World

_LEFT: Final = 110
_WIDTH: Final = 1_040
_TOP: Final = 96
_LANE: Final = 74
_COLOURS: Final = (
    "#1f4e8c", "#2e8b57", "#e07b00", "#8a2be2", "#b03060", "#007a87", "#7a5c00", "#555555",
    "#c0504d", "#3a7d00", "#0047ff", "#a0522d",
)  # fmt: skip
_LOST: Final = "#d00000"
_FAULT: Final = "#666"
_DECISION: Final = "#2050c0"
_LABEL_PX: Final = 6.2
"""About the width of a letter."""

_Place = Callable[[float], float]
"""Where a time stands."""


def diagram(title: str, world: World, from_s: float, to_s: float) -> str:
    """The messages that were sent in a part of a run whose world has a ``trace``. A line that ends
    half way, red, is a message that never came."""
    hosts = list(world.hosts)
    shown = [each for each in world.trace or () if from_s <= each.sent_at <= to_s]
    kinds = list(dict.fromkeys(type(each.message).__name__ for each in shown))
    colours = {kind: _COLOURS[place % len(_COLOURS)] for place, kind in enumerate(kinds)}
    height = _TOP + _LANE * len(hosts) + 30
    lanes = {name: _TOP + _LANE * place + _LANE // 2 for place, name in enumerate(hosts)}

    def x(at_s: float) -> float:
        return round(_LEFT + _WIDTH * (at_s - from_s) / (to_s - from_s), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 30}" '
        f'height="{height}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
        *_legend(colours),
    ]
    for name, y in lanes.items():
        parts.append(f'<text x="10" y="{y + 4}">{escape(name)}</text>')
        parts.append(f'<line x1="{_LEFT}" x2="{x(to_s)}" y1="{y}" y2="{y}" stroke="#888"/>')
        for first, last in _down(name, world.events, to_s):
            if last > from_s and first < to_s:
                a, b = x(max(first, from_s)), x(min(last, to_s))
                parts.append(f'<rect x="{a}" y="{y - 7}" width="{b - a}" height="14" fill="#ccc"/>')
    parts += [
        _message(each, lanes, x, to_s, colours[type(each.message).__name__]) for each in shown
    ]
    parts += _events([each for each in world.events if from_s <= each.at <= to_s], lanes, x)
    for tick in range(11):
        at = from_s + (to_s - from_s) * tick / 10
        parts.append(f'<text x="{x(at)}" y="{height - 8}" text-anchor="middle">{at:.4g} s</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(colours: dict[str, str]) -> Iterable[str]:
    """The kinds of messages, in rows below the title."""
    at, y = 10.0, 42
    signs = (("never came", _LOST), ("fault; grey bar: down", _FAULT), ("decision", _DECISION))
    for kind, colour in (*colours.items(), *signs):
        if at + _LABEL_PX * len(kind) + 40 > _LEFT + _WIDTH:
            at, y = 10.0, y + 18
        yield f'<line x1="{at}" x2="{at + 18}" y1="{y - 4}" y2="{y - 4}" stroke="{colour}"/>'
        yield f'<text x="{at + 22}" y="{y}" fill="{colour}">{escape(kind)}</text>'
        at += _LABEL_PX * len(kind) + 46


def _message(each: Sent, lanes: dict[str, int], x: _Place, to_s: float, colour: str) -> str:
    start, y1 = x(each.sent_at), lanes[each.source]
    y2: float = lanes[each.target]
    what = f"{each.source} to {each.target}: {each.message}"
    if each.arrived_at is None:
        end, y2, colour = start + 6, (y1 + y2) / 2, _LOST
    elif each.arrived_at > to_s:  # on its way when the picture ends
        share = (to_s - each.sent_at) / (each.arrived_at - each.sent_at)
        end, y2 = x(to_s), round(y1 + (y2 - y1) * share)
    else:
        end = x(each.arrived_at)
    dot = f'<circle cx="{end}" cy="{y2}" r="2" fill="{colour}"/>'
    line = f'<line x1="{start}" x2="{end}" y1="{y1}" y2="{y2}" stroke="{colour}"/>'
    return f"<g><title>{escape(what)}</title>{line}{dot}</g>"


def _events(events: Sequence[Happened], lanes: dict[str, int], x: _Place) -> Iterable[str]:
    """Faults and decisions, on the lanes of those they happened to; a row each time."""
    free = dict.fromkeys(lanes, (0.0, 0))
    for each in events:
        colour = _FAULT if each.is_fault else _DECISION
        for name in (name for name in each.who.split() if name in lanes):
            at, (until, row) = x(each.at), free[name]
            row = row + 1 if at < until else 0
            free[name] = (at + _LABEL_PX * len(each.what), row)
            y = lanes[name] - 14 - 11 * (row % 2)
            yield f'<circle cx="{at}" cy="{lanes[name]}" r="4" fill="{colour}"/>'
            halo = 'font-size="10" paint-order="stroke" stroke="white" stroke-width="3"'
            yield f'<text x="{at}" y="{y}" {halo} fill="{colour}">{escape(each.what)}</text>'


def _down(name: str, events: Sequence[Happened], end_s: float) -> list[tuple[float, float]]:
    """From when to when a host was dead."""
    ends = ("killed", "stopped", "power cut", "ends: no room")
    mine = [each for each in events if each.who == name]
    mine = [each for each in mine if each.what in (*ends, "started again")]
    spans = [(one.at, two.at) for one, two in pairwise(mine) if one.what in ends]
    return [*spans, (mine[-1].at, end_s)] if mine and mine[-1].what in ends else spans
