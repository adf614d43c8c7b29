"""Bounds of a bookie's space: how much one step of deletion and compaction takes."""

from __future__ import annotations

from typing import Final

from spark_ledger.limits import KIB, MIB

DELETED_ROWS_AT_ONCE: Final = 10_000
"""Rows that one index transaction deletes: about 50 ms, for which a flush waits."""

DELETED_LEDGERS_AT_ONCE: Final = 1_000
"""Ledgers of one such transaction: most have few rows, and each has a record and a proof."""

# -- compaction ------------------------------------------------------------------------------------

COMPACTED_GARBAGE_SHARE: Final = 0.5
"""A log with so much dead in it is copied and removed: each byte that is freed costs at most one
byte that is copied."""

DIRECTORY_GARBAGE_SHARE_MAX: Final = 0.25
"""With more of a directory dead, logs are copied sooner: so it holds at most 1.34 times what is
live, beside the logs that are being written."""

COMPACTED_GARBAGE_SHARE_CROWDED: Final = 0.2
"""The share from which on they are then: each byte that is freed costs at most four."""

COMPACTED_GARBAGE_SHARE_FULL: Final = 0.05
"""The share while a disk is above its high water mark: writers are refused, so copies may cost."""

COMPACTION_BYTES_PER_S: Final = 64 * MIB
"""Copied per second, in all directories: a tenth of what a disk does, so that appends hardly
notice. Four times as much while a disk is full."""

COMPACTION_FULL_FACTOR: Final = 4
"""How much quicker it is while a disk is full."""

COMPACTION_INTERVAL_S: Final = 60.0
"""Between two looks at what is dead; a deletion has it look at once. A look reads one value per
log."""

COMPACTION_INTERVAL_FULL_S: Final = 5.0
"""The same while a disk is full."""

COMPACTION_ROWS_AT_ONCE: Final = 1_000
"""Rows that one index transaction moves to a copy: about 10 ms, for which a flush waits."""

HOLE_BYTES_MIN: Final = 16 * KIB
"""A dead block with so much to give back is given back where it is, without a copy. It takes the
file system about a millisecond, in which some hundred KB of smaller blocks are copied."""

DEAD_BLOCKS_MAX: Final = 500_000
"""Dead blocks of a directory that wait for that, 8 MB. Those beyond it wait for a copy."""

SCAN_WINDOW_BYTES: Final = 256 * KIB
"""Read at once in the search for blocks of a log; longer blocks are passed over unread."""

# -- scrub -----------------------------------------------------------------------------------------

SCRUB_BYTES_PER_S: Final = 8 * MIB
"""Read and verified per second, in all directories: a hundredth of what a disk does, and 4.8 TB in
a week."""

SCRUB_INTERVAL_S: Final = 7 * 24 * 3600.0
"""From the end of one pass to the begin of the next. Latent errors of sectors are found in time if
all is read every one or two weeks."""

SCRUB_FIRST_S: Final = 60.0
"""A bookie that has just started has other things to read."""

SCRUB_AGAIN_S: Final = 60.0
"""A pass that broke off goes on after this."""

SCRUB_SAVED_S: Final = 60.0
"""How often a pass writes down how far it is: what a restart has to read again."""

SCRUB_LEDGERS_AT_ONCE: Final = 1_000
"""Ids of ledgers that a pass holds in memory."""

LACKING_MAX: Final = 100_000
"""Damaged blocks that await copies, per directory: a file of 5 MB. A disk with more is lost."""
