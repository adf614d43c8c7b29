"""What a bookie's process changes of the defaults: how memory is kept, how threads take turns."""

from __future__ import annotations

import sys

from spark_ledger.limits.bookie import BOOKIE_APPEND_BYTES_IN_FLIGHT_MAX, THREAD_TURN_S
from spark_ledger.wire.allocator import keep_freed_memory, share_heaps


def set_up_process() -> None:
    """For the whole process, before anything is served."""
    share_heaps()
    keep_freed_memory(BOOKIE_APPEND_BYTES_IN_FLIGHT_MAX)
    sys.setswitchinterval(THREAD_TURN_S)
