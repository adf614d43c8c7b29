"""Files of a local cluster that are written again at each start."""

from __future__ import annotations

from pathlib import Path


def replace_file(path: Path, text: str) -> Path:
    """Write a file as a whole, so that a kill or a full disk leaves the old one; its path."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
    return path
