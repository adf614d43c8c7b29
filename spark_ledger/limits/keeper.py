"""Bounds of the keeper: how long it waits before it acts, and how fast it does."""

from __future__ import annotations

from typing import Final

from spark_ledger.limits import MIB

KEEPER_PASS_S: Final = 10.0
"""Pause between two passes. A pass over an idle cluster is a few reads."""

PASS_PART_S: Final = 30.0
"""For so long a pass looks at open ledgers, and for so long at unnamed ones, and does what is due.
Then streams have their turn, whose retention keeps disks from filling: what is dropped is deleted
for so long, and what packs and merged manifests have replaced as well. After the next pause those
ledgers and streams have theirs that had none."""

OWNER_GRACE_S: Final = 30.0
"""An owner that is gone for so long has its open ledgers recovered. Whoever only lost a session is
back within a second; a process that was paused for longer is fenced, and writes to new ledgers."""

LIVING_READ_S: Final = 600.0
"""A ledger that is open, and whose owner lives, is read this often, in case somebody has begun to
recover it and did not end: of ten thousand 17 a second."""

UNNAMED_GRACE_S: Final = 3 * 24 * 3600.0
"""An owner that is gone for so long has those of its ledgers deleted that no transaction has named.
Longer than a Spark job runs: it commits at its end, when executors that were done first may be gone
for long. One that takes longer still fails with a sentence, and loses nothing else."""

RECOVERIES_PER_S: Final = 5.0
"""Recoveries that are begun: each reads and fences on three bookies or more. A thousand dead
writers take some minutes, and nobody beside them notices."""

RECOVERIES_AT_ONCE: Final = 4
"""Recoveries under way. One whose bookies are silent takes some seconds, and holds up no others."""

DELETES_PER_S: Final = 50.0
"""Ledgers that are deleted: each is a transaction that ZooKeeper syncs."""

FAILED_AGAIN_S: Final = 10.0
"""A ledger that cannot be recovered is tried again after this, and twice as long each time."""

FAILED_AGAIN_S_MAX: Final = 3600.0
"""Longest of these pauses: its bookies may be gone for days."""

GONE_OWNERS_KEPT: Final = 5_000
"""Gone owners whose time is kept in the metadata, 40 bytes each: those that are gone longest. A new
keeper goes on counting there; for others it begins again."""

STREAM_SWEEP_PASSES: Final = 6
"""Deletions of streams that were cut off are looked for in every so many passes, and finished when
they were found twice: the first time somebody may be at work on it."""

KEEPER_LOOK_S: Final = 10.0
"""A bookie looks about this often whether the cluster has a keeper, and starts one if not."""

KEEPER_STOP_S: Final = 5.0
"""A bookie that stops waits so long for its keeper, then kills it: the next one goes on."""

ELECTION_RETRY_S: Final = 5.0
"""A candidate looks again this often; a watch wakes it sooner."""

REACH_LOOK_S: Final = 60.0
"""The elected keeper asks this often whether bookies answer it."""

REACH_LOOKS: Final = 10
"""After so many looks in a row at which hardly any did it leaves its place: longer than a switch
restarts, as what it copies begins anew then."""

REACH_ASKED_MAX: Final = 20
"""It asks so many at most, drawn by lot."""

KEEPER_FAILED_PAUSE_S: Final = 60.0
"""A bookie whose keeper ended by an error starts no other for so long: one elsewhere is elected
meanwhile, which may reach what this one could not."""

DROPPED_GRACE_S: Final = 300.0
"""The ledgers of rows that were dropped are deleted so long after that: a batch that was planned
before reads them without asking. Longer than a commit looks for its lost reply
(``COMMIT_TIMEOUT_S``). Who reads for longer sets a hold."""

DROPPED_LEAST_S: Final = 75.0
"""What a batch has at least if more rows wait for the grace than the stream's retention keeps: at
140 MB/s, ten gigabytes instead of forty. Longer than a commit looks for its lost reply, and than
Kafka keeps files of deleted segments."""

REPLACED_GRACE_S: Final = 2 * 24 * 3600.0
"""So long after a pack or a page above leaves was made what it replaced is deleted: a backup of
ZooKeeper of before names that. With a backup a day the newest one is complete, and the one before
it, should it be missing. Delta Lake's VACUUM keeps a week, Iceberg five days, for readers of old
snapshots; here these go on in the pack."""

HURRIED_SHARE: Final = 0.125
"""A stream of which more than this share of what its retention keeps is dropped, and not given
back, is visited at each pass: what is written between two visits lies beside what is kept."""

HURRIED_BYTES_MIN: Final = 64 * MIB
"""But not for less than this, which no disk is short of: a visit is a dozen operations."""

CONFLICTS_TO_SAY: Final = 5
"""So many visits to a stream in a row that ended because somebody changed it meanwhile are said as
an error. Less is what writers at full speed do: each visit does a part, the next one the rest."""

CLOCK_CATCH_UP: Final = 10
"""How many times faster than time passes the keeper's clock catches up with one that is ahead: an
outage of three days in eight hours, a clock that jumped by a year in forty days."""

CLOCK_SLACK_MS: Final = 3_600_000
"""From here on the keeper warns that the clock of its host is ahead of the last keeper's."""

SWEPT_STREAMS_MAX: Final = 1000
"""Streams of which the keeper remembers what their live commits name, the last ones given back;
and as many of which it remembers since when they were dropped or replaced, the last ones swept."""

RECLAIM_STEPS_MAX: Final = 20
"""Steps of a thousand commits for one stream in one sweep: others have their turn as well."""

AUDIT_S: Final = 7 * 24 * 3600.0
"""Time of a keeper's work from the end of one audit to the next. What an audit finds is rare: it is
left by versions of before, and by commits of more than a thousand ledgers that failed."""

AUDIT_STEPS_PER_PASS: Final = 5
"""Steps of an audit in one pass. One reads the names in a thousand commits: a million of them take
half an hour, and nobody notices."""

AUDIT_LEDGERS_PER_STEP: Final = 200
"""Ledgers whose metadata are read in one step, of those that nothing names: 100 a second."""

AUDIT_SAVED_STEPS: Final = 50
"""Steps after which an audit writes down which names it has read: fifty thousand commits, read in
less than two minutes, are read again by a keeper that takes over."""

AUDIT_SAVED_STREAMS: Final = 1000
"""Streams whose place it writes down, those with the most commits: 100 KB in one node."""

AUDIT_ATTEMPTS: Final = 30
"""Attempts, one a pass, to read on in a stream, before an audit leaves its ledgers alone: five
minutes in which its bookies may be away. The next audit tries again."""

AUDIT_ATTEMPTS_LOST: Final = 3
"""The same where a part of the stream is lost or damaged: only an operator brings that back."""

OPTIMIZE_S: Final = 3600.0
"""From the end of one look for small commits to the next. Each look reads what the commits of a
stream are that are in no pack, and makes one pack: a copy of a gigabyte at most."""

OPTIMIZE_BYTES_PER_S: Final = 16 * MIB
"""Bytes of entries that the keeper copies into packs, and each bookie of a pack's ledger writes as
many: a pack of a gigabyte takes a minute, beside which writers and readers have most of a disk."""

OPTIMIZED_ENTRIES_MIN: Final = 20_000
"""Small entries that are worth a pack to the keeper, which comes again: with a commit a second that
is a pack in five hours, and a stream reaches its bound of five thousand packs after three years."""
