"""The directory of a local cluster, and its files that are written again at each start."""

from __future__ import annotations

from pathlib import Path

from spark_ledger.errors import ConfigurationError


def replace_file(path: Path, text: str) -> Path:
    """Write a file as a whole, so that a kill or a full disk leaves the old one; its path."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
    return path


def absolute(directory: str | Path) -> Path:
    """The directory of a cluster. Raises ConfigurationError if it can be none."""
    try:
        return Path(directory).expanduser().resolve()
    except (RuntimeError, ValueError, OSError) as error:  # no such user, a NUL, links in a circle
        raise ConfigurationError(
            f"directory {str(directory)!r} is no path here: {error}"
        ) from error
