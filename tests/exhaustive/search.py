"""Depth-first search of all states of a scope, with every promise checked in each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.exhaustive.promises import Broken, check_state
from tests.exhaustive.scopes import Scope
from tests.exhaustive.shells import ENTRY_BYTES
from tests.exhaustive.states import Action, State
from tests.exhaustive.trace import told
from tests.exhaustive.world import World


@dataclass
class Found:
    """What a search saw."""

    scope: str
    states: int = 0
    transitions: int = 0
    depth: int = 0
    ends: int = 0
    """States in which nothing can happen any more."""
    client_states: int = 0
    seconds: float = 0.0
    complete: bool = False
    violation: str = ""
    trace: list[str] = field(default_factory=list)
    """How the violation came about, one line per step."""


class Search:
    """One search of one scope."""

    def __init__(self, scope: Scope) -> None:
        self.world = World(scope)
        self._seen: set[int] = set()
        self._stack: list[tuple[State, Iterator[Action]]] = []
        self._taken: list[Action] = []
        self.found = Found(scope.name)

    def run(self, states_max: int, progress: Callable[[Found], None] | None = None) -> Found:
        """Search until all is seen, ``states_max`` states were, or a promise is broken."""
        found, world = self.found, self.world
        began = time.monotonic()
        try:
            self._enter(world.first())
            while self._stack and found.states < states_max:
                state, actions = self._stack[-1]
                action = next(actions, None)
                if action is None:
                    self._stack.pop()
                    if self._taken:
                        self._taken.pop()
                    continue
                found.transitions += 1
                self._taken.append(action)
                if not self._enter(world.after(state, action)):
                    self._taken.pop()
                elif progress is not None and found.states % 4096 == 0:
                    found.seconds = time.monotonic() - began
                    progress(found)
            found.complete = not self._stack
        except Broken as broken:
            found.violation = str(broken)
            found.trace = told(world, self._taken)
        found.client_states = len(world.clients)
        found.seconds = time.monotonic() - began
        return found

    def _enter(self, state: State) -> bool:
        """Look at a state, unless it was seen before."""
        # A 64-bit hash stands for the state: of a million states, two are mistaken for one with
        # a chance of one in thirty million.
        key = hash(state)
        if key in self._seen:
            return False
        self._seen.add(key)
        found, world = self.found, self.world
        found.states += 1
        check_state(
            world.value(state),
            state.confirmed,
            dict(zip(world.names, state.bookies, strict=True)),
            ENTRY_BYTES,
        )
        self._stack.append((state, world.actions(state)))
        found.depth = max(found.depth, len(self._stack))
        if not state.network:
            self._check_rest(state)
        return True

    def _check_rest(self, state: State) -> None:
        """I13: with nothing under way, nobody waits."""
        for index, client in enumerate(state.clients):
            if client >= 0 and self.world.clients[client].is_pending:
                raise Broken(f"I13: client {index} waits for something, and nothing is under way")
        self.found.ends += 1
