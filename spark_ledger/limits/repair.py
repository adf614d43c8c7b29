"""Bounds of repair: how long a lost bookie is waited for, and how fast copies are made again."""

from __future__ import annotations

from typing import Final

from spark_ledger.limits import MIB

LOST_BOOKIE_DELAY_S: Final = 300.0
"""A bookie that is not registered for so long is lost. A restart, an upgrade or a move of a machine
takes less; copying what such a bookie holds, for nothing, takes longer."""

OPEN_LEDGER_GRACE_S: Final = 600.0
"""An open ledger whose writer lives and adds nothing names a lost bookie for so long; then it is
recovered. A writer that adds replaces the bookie by itself within seconds."""

MASS_LOSS_SHARE: Final = 0.5
"""When more than this share of the bookies is gone at once, nothing is copied: a switch or a power
line is the likely cause, and the rest has no room and no time for all copies."""

REPAIR_BYTES_PER_S: Final = 32 * MIB
"""What one worker copies at most; a quarter of a slow disk, so that writers hardly notice."""

REPAIR_SOURCE_BYTES_PER_S: Final = 16 * MIB
"""What one worker reads from one bookie at most: half of what it copies, so that one lost bookie's
copies come from two others at least, and each has most of its disk left for its clients."""

REPAIRS_AT_ONCE: Final = 16
"""Ledgers that one worker repairs at a time: small ones cost round trips and no bytes. Each copy
holds 8 MiB, or an entry of each of its lanes if that is more: 384 MiB in all of ledgers with three
copies, over more bookies, and entries of 8 MiB."""

REPAIR_ASKS_AT_ONCE: Final = 4
"""Of these, how many at most ask what is confirmed of open ledgers that are waited for: dead
machines are asked in vain for seconds, and copies of others are more urgent."""

REPAIR_PASS_S: Final = 5.0
"""A worker looks this often for marked ledgers, and the auditor for bookies that are gone."""

REPAIR_FAILED_AGAIN_S: Final = 10.0
"""A ledger that cannot be repaired is tried again after this, and twice as long each time."""

REPAIR_FAILED_AGAIN_S_MAX: Final = 3600.0
"""Longest of these pauses: its bookies may be gone for days, and it must not hold up others."""

REPAIR_UNTOLD_AGAIN_S: Final = 60.0
"""Longest pause of a ledger that waits for what nobody announces: that who knows its password
closes it, or that a bookie answers which is registered all the time, and was hung or overloaded.
Then its copies are made within two minutes, not within an hour. A look costs few metadata reads.
"""

LEAVING_LOOK_S: Final = 30.0
"""A bookie looks this often whether an operator takes it out; a watch tells it sooner."""

AUDIT_READS_PER_S: Final = 2_000.0
"""Metadata of ledgers that an audit reads. ZooKeeper answers ten times as many, also to others."""

AUDIT_INTERVAL_S: Final = 24 * 3600.0
"""All ledgers are audited this often although no bookie was lost: for what earlier ones missed."""

TARGETS_TRIED_MAX: Final = 3
"""Bookies that a copy is tried on before the ledger waits for its next turn."""

FAILURES_SHOWN_MAX: Final = 100
"""Ledgers of which a status tells the reason."""

MEASURED_LEDGERS_MAX: Final = 1_000
"""Marked ledgers whose size a status counts: two reads each."""

REPAIR_COUNTED_S: Final = 5.0
"""A worker writes this often down what it has copied, for those who look at the status."""

CHECK_INTERVAL_S: Final = 7 * 24 * 3600.0
"""All bookies are asked this often which entries they hold. What is lost without a lost bookie is
rare, and two other copies are there meanwhile."""

CHECKED_MEMBERS_PER_S: Final = 100.0
"""Questions that a check asks: a million ledgers of three bookies take eight hours, and a bookie
answers ten times as many beside its work."""

CHECK_PASS_S: Final = 60.0
"""A keeper looks this often whether a check is due."""

CHECK_HUNG_S: Final = 60.0
"""A check does not ask a bookie for so long that has let a question time out: it goes on with the
others, and the silence of one costs it a sixth of its time. Repair copies from such a bookie what
no other one has."""

CLOSED_PASS_S: Final = 30.0
"""A keeper looks this often which ledgers were closed. Until then an entry that reached the ack
quorum only may have a copy less than it should."""

CLOSED_PAGES: Final = 10
"""Pages of ten thousand ids that such a look lists: a ledger with an older id, that was made and
closed between two looks, is left to the weekly check."""

CLOSED_AT_FIRST_MAX: Final = 10_000
"""Ids that the first such look of a cluster takes for new: five minutes of questions."""

CLOSED_AT_ONCE: Final = 4
"""Ledgers of such a look that are asked for at a time: answers that come late lower its rate less,
and a bookie has room for four times as many questions of one connection."""

CLOSED_GAPS_MAX: Final = 500
"""Ranges of ids without a ledger that a look writes down, the newest ones: some ten KiB. A client
that is alive makes one, and one that has ended leaves one."""

CLOSED_SILENT_MAX: Final = 10_000
"""Closed ledgers that are kept in memory to be checked again, since a bookie did not answer."""

LOST_LOOKED_UP_S: Final = 1.0
"""Ledgers that a worker begins within this time share one look at who is registered: a bookie that
comes back meanwhile is copied from, and copied once for nothing."""

REFETCH_LOOK_S: Final = 15.0
"""A bookie looks this often whether repair has brought what it found damaged: a few passes."""

REFETCH_LEDGERS_AT_ONCE: Final = 200
"""Ledgers of one such look: a metadata read each, and a list of what is held."""

REBALANCE_TOLERANCE: Final = 0.1
"""A rebalance ends once the used share of each bookie is so near to the mean, in parts of it: where
a half is used on average, from 45 % to 55 %. What is nearer is not worth a copy."""
