"""Numbers that are policy, each with its reason, in one file per topic.

What several files share, or a user may meet, stands here. A number that only one file understands
(the journal's group commit, the local cluster) stands there, with its reason.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
