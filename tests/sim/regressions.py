"""Schedules that failed once: saved as files, and run again by every later run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.sim.options import Options
from tests.sim.running import Failure, git_commit

FOLDER: Final = Path(__file__).resolve().parents[1] / "regressions"


def save(failure: Failure) -> Path:
    """Save a failing schedule. Commit the file together with the fix."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"sim_{failure.seed}.json"
    content = {
        "seed": failure.seed,
        "options": failure.options,
        "found_at": git_commit(),
        "violations": failure.violations,
    }
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path


def options_saved(seed: int) -> dict[str, Any] | None:
    """The options with which the schedule of a seed failed; None if it was not saved.

    An option that did not exist then has its default, whatever the seed draws for it now. So a new
    option does not change a saved schedule, if its default injects nothing.
    """
    path = FOLDER / f"sim_{seed}.json"
    if not path.exists():
        return None
    stored = msgspec.convert(json.loads(path.read_text())["options"], Options)
    options: dict[str, Any] = msgspec.to_builtins(stored)
    return options


def saved() -> list[Path]:
    """All saved schedules."""
    return sorted(FOLDER.glob("sim_*.json"))
