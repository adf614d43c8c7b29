"""Bounds of garbage collection: how often a bookie looks for deleted ledgers, and how much goes."""

from __future__ import annotations

from typing import Final

COLLECTION_INTERVAL_S: Final = 900.0
"""Pause between two passes, as BookKeeper's ``gcWaitTime``. A pass over a hundred thousand ledgers
is some listings; what is deleted without a sign keeps its bytes for so long at most."""

COLLECTION_FULL_INTERVAL_S: Final = 60.0
"""Pause while a disk is full: only deletions make room there."""

COLLECTION_SOON_SHARE: Final = 0.02
"""A pass that let go of more of what the bookie holds is followed by the next one as soon as on a
full disk: streams with retention drop as much as they write, and all of it lies beside what is
alive until the next pass."""

COLLECTION_SIGN_PAUSE_S: Final = 15.0
"""A sign that ledgers were deleted starts no pass within so long of the last one."""

COLLECTION_SIGN_PAUSE_FACTOR: Final = 9
"""Nor within so many times what that took beside its pause: one that lists a million ledgers each
time somebody deletes one takes a tenth of its time for that."""

COLLECTION_WHOLE_INTERVAL_S: Final = 86_400.0
"""Between two passes that read the node of each ledger, as BookKeeper's
``gcOverreplicatedLedgerWaitTime``: copies that repair has named elsewhere lie here for so long at
most, unless an operator orders a pass."""

COLLECTION_READS_PER_S: Final = 2_000.0
"""Nodes that such a pass reads: a hundred thousand ledgers are a minute of it."""

COLLECTION_PAUSE_S: Final = 10.0
"""Between the two looks at a ledger that is to go. Longer than a server of ZooKeeper that is cut
off from the others goes on answering, so that both looks do not go to the same lost server."""

COLLECTION_MARK_S: Final = 10.0
"""A bookie that has taken new ledgers marks the history of the metadata this often. A backup of
ZooKeeper that lacks one of them is noticed if it is older than this. As often it looks for orders
and for signs that ledgers were deleted: two small reads."""

COLLECTION_PAGE: Final = 10_000
"""Ledgers that are compared at once: as many as one node of the metadata lists."""

COLLECTION_LISTED_AT_LEAST: Final = 100
"""Where a bookie holds fewer of the ten thousand ledgers of a node it reads these one by one: the
list of all of them would be longer than the answers."""

COLLECTION_BATCH: Final = 500
"""Ledgers that are read once more and deleted together: the reads take some hundred milliseconds,
and nothing that is read is older than that when it is acted upon."""

COLLECTION_DELETES_PER_S: Final = 1_000.0
"""Ledgers that leave the index: appends beside that are to notice little of it."""

COLLECTION_SHARE_MAX: Final = 0.5
"""A pass that would delete more of what the bookie holds deletes nothing, and asks an operator."""

COLLECTION_FREELY: Final = 200
"""So many ledgers may go whatever their share is: a small store is all old or all new."""

COLLECTION_STOP_S: Final = 5.0
"""A bookie that stops waits so long for a deletion on its disk; the next start goes on with it."""
