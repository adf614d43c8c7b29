"""The watch of a bookie's service loop: its turns are on the bookie's beat, and its end is that of
a bookie whose storage failed."""

from __future__ import annotations

import os
from functools import partial

from bookie_server.exit_codes import EXIT_FATAL
from bookie_server.service.guard.beat import call_on_beat
from spark_ledger import loop_watch


def end_at_once() -> None:
    """What was acknowledged is in the journal: nothing has to be waited for."""
    os._exit(EXIT_FATAL)


LoopWatch = partial(loop_watch.LoopWatch, end=end_at_once, call_later=call_on_beat)
