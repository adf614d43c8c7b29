"""Every scenario file, as a test: what the machines do now is what the file says."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from tests.scenarios.script import files, run


@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    written = path.read_text(encoding="utf-8")
    now = run(written)
    difference = "\n".join(
        difflib.unified_diff(
            written.splitlines(),
            now.splitlines(),
            f"{path.name} as written",
            "as it is now",
            "",
            "",
            lineterm="",
        )
    )
    assert now == written, f"\n{difference}\npython -m tests.scenarios --rewrite {path.stem}"


def test_every_scenario_expects_something() -> None:
    """Output can be rewritten without a thought; an ``expect`` cannot."""
    bare = [path.name for path in files() if "\n> expect " not in path.read_text(encoding="utf-8")]
    assert not bare
    assert files()
