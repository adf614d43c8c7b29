"""Bounds of streams: the clocks of their writers, and cleaning up after a commit."""

from __future__ import annotations

from typing import Final

from spark_ledger.limits import KIB, MIB

COMMIT_CLOCK_AHEAD_MS_MAX: Final = 60_000
"""Two writers whose clocks differ by less give their commits times that ascend: the one behind
takes the time of the other. A commit that is further ahead was made by a wrong clock."""

COMMIT_TIME_RESETS_MAX: Final = 100
"""How often commit times of a stream may go back before every later one takes the latest time: each
reset is a search of its own for readers that start at a time, and a number in the head."""

LEDGERS_NAMED_BY_COMMIT_MAX: Final = 1000
"""Ledgers that one transaction names for the first time: some 200 KB of the 1 MiB that ZooKeeper
takes. Workers that write a few gigabytes each need a thousand processes for so many."""

CREATE_TRIES_MAX: Final = 10
"""Of a stream whose name another one has and gives up at the same moment."""

STREAMS_PER_COMMIT_MAX: Final = 100
"""Streams to which one transaction commits: five nodes each, some 2 KB, of the 1 MiB that ZooKeeper
takes, and each is a race against other writers of the stream."""

TRANSACTION_BYTES_MAX: Final = 900 * KIB
"""Bytes of a transaction on several streams. ZooKeeper takes 1 MiB (``jute.maxbuffer``) and closes
the connection at a byte more, so that the outcome would seem unknown."""

SEGMENT_LISTS_BYTES_MAX: Final = TRANSACTION_BYTES_MAX // 2
"""Bytes of all segment lists in such a transaction; longer ones go into ledgers, one for each
stream, which stay as long as the commit. A hundred streams, and a thousand ledgers that are named
for the first time, leave so much."""

MIXED_READINGS_MAX: Final = 3
"""How often several streams are read before it counts that some have a transaction and some do not:
they are read one after the other, and another process may have committed in between."""

IDLE_LEDGER_S: Final = 20.0
"""A writer of segments that was given nothing for so long closes its ledger: Spark ends its Python
processes without a word, and each would leave an open ledger. Longer than a trigger of a few
seconds, whose micro-batches share a ledger; a new ledger costs some milliseconds."""

LIST_REMOVAL_S: Final = 5.0
"""How long a commit, sealing or packing that failed tries to delete the ledger that it has made."""

HOLD_S_MAX: Final = 366 * 24 * 3600.0
"""Longest time that a hold lasts unless it is renewed. Who needs rows for ever sets no limits."""

HOLDS_MAX: Final = 500
"""Holds of one stream: they are one node of some 200 bytes each, which each truncation reads."""

TRUNCATE_TIMEOUT_S: Final = 60.0
"""How long a truncation, a hold or a change of the retention keeps trying while commits win the
races for the head, or the metadata store cannot be reached; as long as a commit does."""

DROPPED_PER_STEP: Final = 1000
"""Dropped commits whose space is freed at a time: their ledgers are some thousands of ids."""

MERGED_LEDGERS_PER_SWEEP: Final = 1000
"""Ledgers that merged leaves have left, and that a keeper deletes at one visit to a stream: in some
twenty seconds. A stream with a hundred commits a second leaves sixty from one visit to the next."""

MERGED_LEDGERS_KEPT: Final = 20_000
"""Ledgers of merged leaves that wait for backups, of one stream: 20 MB of ZooKeeper's heap, and two
days of eleven commits a second. Of a faster one the oldest go before the grace is over."""

DROPPING_LEDGERS_MAX: Final = 500
"""Ledgers that the configuration lists as dropped at a time: 5 KB, which each writer reads once.
One list follows the other as long as there is time."""

LOOKS_AT_ONCE: Final = 64
"""Ledgers of dropped rows whose metadata are read at the same time, before they are deleted."""

LIVE_NAMES_MAX: Final = 500_000
"""Ledgers of which a process knows the last commit that names them, about 50 MB: those of a week of
200 workers that end every five minutes. Beyond that all commits are read at each step again."""

# -- packs of small commits (rule T23) -------------------------------------------------------------

PACK_GAIN_MIN: Final = 16
"""A commit is small if so many of its entries, as stored, fill one of the stream's size. Larger
ones cost their bytes, and hardly anything for being many."""

PACKED_ENTRIES_MIN: Final = 1000
"""Entries of small commits that are worth a ledger: to read them one by one takes some 50 ms. With
fewer the packs of a stream would become as many as its ledgers were."""

PACK_SEGMENTS_MAX: Final = 100_000
"""Segments of one pack: a reader keeps their row counts, some 8 MB."""

PACK_COMMITS_MAX: Final = 100_000
"""Commits of one pack: the optimizer has them in memory, some 100 MB of eight tasks each."""

PACKS_MAX: Final = 5000
"""Packs of a stream: their node has some 130 bytes for each, of the 1 MiB that ZooKeeper takes."""

PACKS_KNOWN_S: Final = 60.0
"""For so long a handle reads with the packs that it knows: one read of a node a minute, and what
was packed since is read in few large entries."""

# -- what the handle of a stream keeps in memory ---------------------------------------------------

COMMITS_KEPT_BYTES_MAX: Final = 12 * MIB
"""Decoded commits: some 15,000 of one task each, or 5,000 of eight. With the pages, and with what a
query's plan keeps (``COMMITS_CACHED_BYTES_MAX``), a driver stays under 50 MB for a stream."""

PAGES_KEPT_BYTES_MAX: Final = 8 * MIB
"""Pages that a handle keeps for later look-ups, as stored: those of some 100,000 commits."""

# -- reading ---------------------------------------------------------------------------------------

READ_WINDOW_BYTES_MIN: Final = 1 * MIB
"""What a read fetches first where its segments lie in several ledgers: the first rows come soon."""

READ_WINDOW_BYTES_MAX: Final = 8 * MIB
"""What it fetches together after that. A reader holds at most two windows: one whose rows are being
put into order, and one that comes in."""

# -- planning reads --------------------------------------------------------------------------------

READ_ONLY_BOOKIE_SHARE: Final = 0.5
"""How much a read-only bookie is asked for, compared with a writable one. It takes no new entries,
but its disks are full or failing, and it compacts."""

PLAN_LEDGERS_MAX: Final = 512
"""Ledgers whose metadata one plan looks up, 64 at once, each some 0.2 ms of ZooKeeper's time. The
entries of others are read too: their readers turn by the number of the partition."""

LEDGERS_LOCATED_MAX: Final = 2048
"""Ledgers whose metadata a handle keeps for later plans: some 2 MB."""

LOCATED_S: Final = 30.0
"""For how long a plan takes the fragments of an open ledger as known. Older ones do no harm: only
the bookie that is asked first may be one that was replaced."""

KEYS_FILTERED_MAX: Final = 2048
"""Different keys of a segment of which a filter is kept. A segment with more is read for any key,
unless its smallest and largest key say otherwise."""

KEY_FILTERS_BYTES_MAX: Final = 4 * KIB
"""Bytes of all key filters of one commit. Its node takes a third more in ZooKeeper, where the
newest few hundred commits of a stream are; 64 segments get 64 bytes each."""
