"""A bookie as ``python -m bookie_server``, but a kill loses what it has not synced."""

from __future__ import annotations

import sys

from bookie_server.__main__ import main
from tests.chaos.volatile import install

if __name__ == "__main__":
    install()
    sys.exit(main())
