"""A picture of one scenario, as SVG: a lane for each protocol, a stroke for each value."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from spark_ledger.lab.runs import Outcome
from spark_ledger.lab.scenarios import UNTIL_S
from spark_ledger.lab.world import World

_LEFT: Final = 215
_WIDTH: Final = 900
_TOP: Final = 64
_LANE: Final = 70
_TITLE_CHARACTERS: Final = 125
"""Of one line."""
_SLOWEST_MS: Final = 10_000
_MARKS_MS: Final = (10, 100, 1_000)


def picture(title: str, runs: Sequence[tuple[Outcome, World]]) -> str:
    """The picture of runs of one scenario. A stroke stands where its value was added, and is as
    high as it waited, on a scale of powers of ten."""
    lines = textwrap.wrap(title, _TITLE_CHARACTERS)
    top = _TOP + 18 * (len(lines) - 1)
    height = top + _LANE * len(runs) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 20}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        *(
            f'<text x="10" y="{20 + 18 * place}" font-size="14" font-weight="bold">'
            f"{escape(line)}</text>"
            for place, line in enumerate(lines)
        ),
        f'<text x="10" y="{top - 24}">Each stroke is a value: where it was added, and how long it '
        'waited for its acknowledgement. <tspan fill="#d00000">Red: acknowledged and lost.</tspan> '
        "Dashed lines: faults (grey) and decisions (blue).</text>",
    ]
    for number, (outcome, world) in enumerate(runs):
        parts += _lane(top + _LANE * (number + 1), outcome, world)
    for second in range(int(UNTIL_S) + 1):
        parts.append(_text(_x(second), height - 22, f"{second} s", "middle"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _lane(base: int, outcome: Outcome, world: World) -> Iterable[str]:
    """One protocol; ``base`` is the lane's bottom."""
    yield f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{base}" y2="{base}" stroke="#888"/>'
    yield _text(10, base - 28, outcome.protocol, "start")
    yield _text(10, base - 12, f"lost {outcome.lost}, gap {outcome.longest_gap_ms:g} ms", "start")
    for mark in _MARKS_MS:
        y = base - _height(mark)
        yield f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y}" y2="{y}" stroke="#eee"/>'
        yield _text(_LEFT - 4, y + 3, f"{mark} ms", "end", size=8)
    for at, colour, what in _events(world):
        yield (
            f'<line x1="{_x(at)}" x2="{_x(at)}" y1="{base - _LANE + 6}" y2="{base}" '
            f'stroke="{colour}" stroke-dasharray="3 3"><title>{escape(what)}</title></line>'
        )
    kept = {value: at for value, at in world.acknowledged.items() if value not in world.lost}
    gone = {value: at for value, at in world.acknowledged.items() if value in world.lost}
    for values, colour in ((kept, "#30743a"), (gone, "#d00000")):
        strokes = (
            f"M{_x(world.sent[value])} {base}v-{_height(1000 * (at - world.sent[value]))}"
            for value, at in values.items()
        )
        if path := "".join(strokes):
            yield f'<path d="{path}" stroke="{colour}" stroke-width="0.8"/>'


def _events(world: World) -> Iterable[tuple[float, str, str]]:
    """What is drawn: when, in which colour, and what people read who point at it."""
    for at, who, what, is_fault in world.events:
        yield at, "#999" if is_fault else "#2050c0", f"{at:.3f} s: {who} {what}"


def _x(at_s: float) -> float:
    return round(_LEFT + _WIDTH * at_s / UNTIL_S, 1)


def _height(wait_ms: float) -> float:
    """One pixel at least, so that each value is seen."""
    share = math.log10(1 + wait_ms) / math.log10(_SLOWEST_MS)
    return round(max(1.0, (_LANE - 10) * min(1.0, share)), 1)


def _text(x: float, y: float, text: str, anchor: str, *, size: int = 12) -> str:
    at = f'x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}"'
    return f"<text {at}>{escape(text)}</text>"
