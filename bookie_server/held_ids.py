"""Has no ledger id given again under which this bookie holds entries.

Ids come from one counter in ZooKeeper, which goes back when ZooKeeper is restored from a backup. A
bookie has heard of no ledger whose id was not given, so one that knows more than the counter has
seen the future of the backup.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from bookie_server.daemon_thread import in_daemon_thread
from spark_ledger.errors import ConfigurationError, CorruptionError
from spark_ledger.limits.metadata import RESTORED_IDS_SKIPPED
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.ledger_ids import next_counted, raise_counter

logger = logging.getLogger(__name__)


async def pass_over_held_ids(store: MetadataStore, next_ledger_id: Callable[[], int]) -> None:
    """Raise the counter if it is behind ``next_ledger_id``, which may ask the disk.

    With a distance, as running clients and other bookies may know later ids. Raises what the
    metadata store raises.
    """
    try:
        held_below = await in_daemon_thread(next_ledger_id)
        counted = await next_counted(store)
        if counted >= held_below:
            return
        _, now = await raise_counter(store, held_below + RESTORED_IDS_SKIPPED)
    except (ConfigurationError, CorruptionError, OSError):
        logger.exception("nobody can tell whether ledger ids are given again")
        return
    logger.error(
        "the next ledger id was %d, and this bookie knows ledger %d: ZooKeeper was restored from a "
        "backup; ids below %d are passed over; run `ledger cluster restored`",
        counted,
        held_below - 1,
        now,
    )
