"""A schedule in words: what happened, step by step."""

from __future__ import annotations

from collections.abc import Sequence

from spark_ledger.types import LedgerMetadata
from tests.exhaustive.promises import Broken
from tests.exhaustive.states import Action, State
from tests.exhaustive.world import World


def told(world: World, actions: Sequence[Action]) -> list[str]:
    """One line per action, and how the world stands behind the last one that it survived."""
    state = world.first()
    lines: list[str] = []
    for number, action in enumerate(actions, 1):
        lines.append(f"{number:3} {_told(world, state, action)}")
        try:
            state = world.after(state, action)
        except Broken:
            break
    return [*lines, *_world(world, state)]


def _told(world: World, state: State, action: Action) -> str:
    if action.kind not in ("deliver", "hold", "lose"):
        who = {"add": "the writer adds an entry", "close": "the writer closes"}.get(action.kind)
        if action.kind == "crash":
            return f"{world.names[action.number]} crashes"
        return who or f"{_client(world, action.number)} starts ({action.kind})"
    channel = world.channels[action.number // 2]
    first = dict(state.network)[action.number][0]
    who = _client(world, channel.client)
    arrow = "<-" if action.number % 2 else "->"
    words = {"hold": "slow from now on: ", "lose": "no answer in time: "}.get(action.kind, "")
    return f"{words}{who} {arrow} {_text(world.messages[first])}"


def _client(world: World, index: int) -> str:
    if index == 0:
        return "writer"
    return f"recovery {index}" if index <= world.scope.recoveries else "reader"


def _text(message: object) -> str:
    """A message; of metadata only what changes."""
    assert isinstance(message, tuple)
    values = [_metadata(v) if isinstance(v, LedgerMetadata) else str(v) for v in message]
    names: Sequence[str] = getattr(message, "_fields", ())
    pairs = ", ".join(f"{n} {v}" for n, v in zip(names, values, strict=True) if v != "")
    return f"{type(message).__name__}: {pairs}"


def _metadata(metadata: LedgerMetadata) -> str:
    fragments = ", ".join(f"from {f.first_entry} {' '.join(f.bookies)}" for f in metadata.fragments)
    end = f" at {metadata.last_entry_id}" if metadata.is_closed else ""
    return f"[{metadata.state.value}{end}; {fragments}]"


def _world(world: World, state: State) -> list[str]:
    lines = [
        f"metadata: {_metadata(world.value(state))}, version {state.version}",
        f"confirmed: {state.confirmed}",
    ]
    for name, bookie in zip(world.names, state.bookies, strict=True):
        marks = (" fenced" if bookie.fenced else "") + ("" if bookie.up else " dead")
        held = " ".join(map(str, sorted(bookie.entries))) or "nothing"
        lines.append(f"{name}: holds {held}{marks}")
    return lines
