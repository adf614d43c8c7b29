"""Numbers that are policy, each with its reason, in one file per topic.

What several files share, or a user may meet, stands here. A number that only one file understands
(the journal's group commit, the local cluster) stands there, with its reason.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
TIB: Final = 1024 * GIB

SECONDS_MAX: Final = 36_500 * 86_400.0
"""The longest time that a setting may be: a century. Timers of threads take 292 years, and end with
an error beyond; infinity is beyond."""

NUMBER_MAX: Final = 2**63 - 1
"""The largest size or count that a setting may be: what file systems and C take."""
