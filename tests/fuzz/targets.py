"""Every parser of the project, by the source of its input."""

from __future__ import annotations

from tests.fuzz.metadata_targets import metadata_targets
from tests.fuzz.storage_targets import storage_targets
from tests.fuzz.stream_targets import stream_targets
from tests.fuzz.target import Target
from tests.fuzz.text_targets import text_targets
from tests.fuzz.wire_targets import wire_targets


def all_targets() -> list[Target]:
    """Targets of disk, wire, metadata, streams and text."""
    return [
        *storage_targets(),
        *wire_targets(),
        *metadata_targets(),
        *stream_targets(),
        *text_targets(),
    ]
