"""``python -m bookie_server`` for chaos: a kill loses unsynced data, and the wall clock can be
set."""

from __future__ import annotations

import sys

from bookie_server.__main__ import main
from tests.chaos import volatile, wall_clock

if __name__ == "__main__":
    volatile.install()
    wall_clock.install()
    sys.exit(main())
