"""Numbers that are policy, each with its reason: bounds, timeouts, retries and their pauses.

What several files share, or a user may meet, stands here. A number that only one file understands
(the journal's group commit, the local cluster) stands there, with its reason.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# -- ledgers and entries ---------------------------------------------------------------------------

ENTRY_PAYLOAD_BYTES_MAX: Final = 16 * MIB
"""One entry. Larger ones would hold a journal batch, and every entry behind it, for too long."""

ENTRY_FRAME_OVERHEAD_BYTES_MAX: Final = 32 + 16
"""Header and the longest digest (``wire.frame``)."""

ENSEMBLE_SIZE_MAX: Final = 15
"""Each bookie more costs the writer one stream; beyond this, stripe over several ledgers."""

FRAGMENTS_MAX: Final = 10_000
"""An ensemble that changes this often is a sick cluster; metadata stay readable in one node."""

LEDGER_METADATA_BYTES_MAX: Final = 256 * KIB
"""A quarter of ZooKeeper's own ``jute.maxbuffer``, so that a transaction holds several nodes."""

METADATA_REQUEST_BYTES_MAX: Final = 1 * MIB - 16 * KIB
"""One metadata write or transaction. ZooKeeper drops the connection, without a reason, of a client
that sends more than its ``jute.maxbuffer`` (1 MiB less a byte), names and ACLs included."""

# -- metadata --------------------------------------------------------------------------------------

SESSION_TIMEOUT_S: Final = 10.0
"""A client silent for this long loses its ephemeral nodes. The server bounds it to 2-20 ticks."""

FIRST_CONTACT_TIMEOUT_S: Final = 3.0
"""A bookie looks up the key of a ledger that it has no record of for this long, then it says that
it is busy. Below the time after which a writer takes it for silent."""
FIRST_CONTACT_LOOKUPS_MAX: Final = 64
"""Keys that a bookie looks up at a time: some 10,000 new ledgers per second, and a stranger who
asks for ledgers that do not exist puts no more load on ZooKeeper."""
FIRST_CONTACT_LOOKUPS_WAITING_MAX: Final = 4096
"""Ledgers whose first request waits; beyond it a bookie is busy. Entries that wait count as in
flight."""

RESTORED_IDS_SKIPPED: Final = 1_000_000
"""Ledger ids that are passed over after ZooKeeper was restored: running clients still hold blocks
of ids, each of up to LEDGER_ID_BLOCK_MAX, that the restored counter does not know of."""

ZOOKEEPER_PROBE_AFTER_S: Final = 2.0
"""Without a connection for so long, a fresh session is tried, again and again: a server that was
restored from a backup never takes the old one back."""
ZOOKEEPER_PROBE_TIMEOUT_S: Final = 5.0
"""For that session to be accepted."""

LEDGERS_SEEN_MAX: Final = 1_000
"""Ledgers of which a client remembers the metadata that it has seen last, to notice older ones."""

METADATA_ATTEMPTS: Final = 3
"""How often a write is sent while its outcome stays unknown: to create or delete a ledger, to take
ledger ids, to register a bookie. To repeat these is safe: a token in the metadata tells the ledger
from another's, to delete twice is to delete once, ids of a lost reply are skipped, and a bookie
looks at its node again. A change of a ledger's metadata is never repeated, it is read again (rule
P6). Each attempt lasts for ``METADATA_TIMEOUT_S`` already, so more would only delay the error."""

METADATA_READ_AGAIN_FACTOR: Final = 2
"""A change of a ledger's metadata, and the reads after an unknown outcome, take up to this many
metadata timeouts together: one for the change, and as much to learn what became of it."""

METADATA_RETRY_DELAY_S: Final = 0.2
"""Pause before metadata are read again after ZooKeeper could not be reached."""

METADATA_READS_IN_FLIGHT_MAX: Final = 64
"""Nodes of a listing read at once: the answers are large, and each is kept until all are there."""

LEDGER_ID_BLOCK: Final = 64
"""Ledger ids taken per round trip. Unused ones are lost when a client ends; ids are plentiful."""

LEDGER_ID_BLOCK_MAX: Final = 4096
"""The largest block: each one that is used up soon is followed by one of twice its size."""

LEDGER_ID_BLOCK_S: Final = 10.0
"""A client that needs the next block within this time takes a larger one."""

LEDGER_ID_PAUSE_S: Final = 0.05
"""The longest pause before a client that lost the id counter to another tries again; it doubles
each time. Ten clients or so can take their blocks within it."""

LEDGER_ID_PAUSE_S_MAX: Final = 2.0
"""The longest pause of all: a thousand clients find room within it."""

REGISTRATION_MARGIN_S: Final = 10.0
"""A starting bookie waits for its predecessor's session to end: its timeout, and this much more.
The server rounds timeouts up to its ticks, and counts anew when its leader changes."""

REGISTRATION_POLL_S: Final = 2.0
"""While it waits it looks, and says so in the log, this often; a watch wakes it sooner."""

REGISTER_RETRY_DELAY_S: Final = 0.2
"""Pause between attempts of a bookie to register again after a lost session."""

DIRECTORY_REFRESH_S: Final = 30.0
"""A client looks at the list of bookies again about this often: watches are hints."""

DIRECTORY_REFRESHES_OF_ALL: Final = 10
"""Within this many of these looks every registration is read once more, a share each time: free
space drifts. A client of 300 bookies reads one registration a second."""

DIRECTORY_JITTER_S: Final = 0.2
"""A client that hears of a change of the bookies waits up to this long before it reads: all clients
hear of it in the same moment, and a rack that restarts is many changes."""

ZOOKEEPER_CONNECT_ATTEMPT_S: Final = 2.5
"""About how long a server may take to accept a session, before it is tried again. One that is just
starting swallows the first message, and would cost the whole session timeout otherwise."""

ZOOKEEPER_RECONNECT_DELAY_S: Final = 0.05
"""First pause between two attempts to connect; it doubles up to the longest one."""

ZOOKEEPER_RECONNECT_DELAY_S_MAX: Final = 0.5
"""Longest pause. A server that comes back is found at once, compared with the session timeout."""

ZOOKEEPER_RECONNECT_JITTER: Final = 0.2
"""Share of a pause that is random, so that not all clients come back in the same moment."""

ZOOKEEPER_RESTART_DELAY_S: Final = 0.5
"""Pause before kazoo is started anew after its thread has died, or a session is verified again."""

# -- messages --------------------------------------------------------------------------------------

APPEND_MESSAGE_BYTES_TARGET: Final = 1 * MIB
"""A sender puts what is queued into one message up to this; it amortises one gRPC message."""

APPEND_MESSAGE_ADDS_MAX: Final = 4_096
"""Adds of one message: of many small ones, more would keep a bookie busy with one client."""

REQUEST_BYTES_MAX: Final = 64 * KIB
"""A request that carries no entries: some numbers and an access key. A bookie decodes no longer
one, whatever gRPC lets through."""

MESSAGE_BYTES_MAX: Final = ENTRY_PAYLOAD_BYTES_MAX + 1 * MIB
"""gRPC message size both ways: the largest entry, its frame, and room for the fields around it."""

READ_CHUNK_BYTES_TARGET: Final = 1 * MIB
"""A bookie streams a range in chunks of about this size (a single larger entry is one chunk)."""

READ_REQUEST_BYTES_MAX: Final = 64 * MIB
"""A bookie ends one range read after this many bytes; the reader asks for the rest."""

# -- work in flight --------------------------------------------------------------------------------

WRITER_BYTES_IN_FLIGHT_MAX: Final = 32 * MIB
"""Payload a writer holds for the slowest live bookie of its ensemble; then producers wait."""

WRITER_QUEUED_BYTES_FACTOR: Final = 4
"""An append is refused when more than this many times the bound on bytes in flight is queued. A
producer that waits for room can pass that bound with one batch and does not come near this one; a
producer that never waits would fill the memory without it (rule P11)."""

BOOKIE_APPEND_BYTES_IN_FLIGHT_MAX: Final = 64 * MIB
"""Append bytes a bookie holds before they are durable; then it stops reading its streams. Twice
what one writer may have in flight, and a third of a second of a fast disk."""

BOOKIE_APPEND_SHARED_BYTES: Final = 16 * MIB
"""Append bytes that all connections together may have in flight before each is held to its share: a
batch of the journal. Whoever waits for each of its entries waits behind little more than that."""

BOOKIE_WAITING_BYTES_MAX: Final = 32 * MIB
"""Append bytes that wait for room in the write cache; further adds are told to come back later."""

READ_CHUNKS_AHEAD_MAX: Final = 4
"""Chunks (of about 1 MiB) that are read before the consumer has taken the first."""

# -- a bookie --------------------------------------------------------------------------------------

BOOKIE_REFUSED_APPENDERS_MAX: Final = 65_536
"""On one append stream. Refused appenders are remembered, so that nothing behind a refusal is
stored. A stream with more of them has been failing for days: it is ended, its client starts afresh.
"""

BOOKIE_MALFORMED_ADDS_MAX: Final = 16
"""On one append stream. Each is answered; a client that sends more of them is not one of ours."""

BOOKIE_UNSENT_RESULTS_MAX: Final = 4_096
"""Results that wait for a client which does not read them; then its stream is not read either."""

BOOKIE_APPEND_STREAMS_MAX: Final = 2_048
"""A client has one per bookie. Each kind of call has a bound of its own, so that many of one kind
never refuse another."""

BOOKIE_FENCES_MAX: Final = 1_024
"""Reads of recoveries, too: they fence with their first question."""

BOOKIE_READS_MAX: Final = 1_024
"""Far more than are served at once; the rest wait in a row, and hold no data."""

BOOKIE_LONG_POLLS_MAX: Final = 4_096
"""Readers at the tail of a ledger. Above it a client asks again later."""

BOOKIE_CONFIRMS_MAX: Final = 1_024
"""Writers that tell the last add confirmed as they become idle, and readers that ask for it."""

BOOKIE_LISTS_MAX: Final = 64
"""Each may be long."""

BOOKIE_DESCRIBES_MAX: Final = 64
"""People, probes and tools that ask how a bookie does."""

BOOKIE_RECEIVING_MAX: Final = 1_024
"""Calls whose request has not arrived as a whole: with honest clients it comes with the call."""

BOOKIE_LEFTOVERS_MAX: Final = 1_024
"""Calls that are answered, and whose clients do not read even a few bytes."""

BOOKIE_CONNECTION_SHARE: Final = 4
"""One connection may have one in so many of the calls of a kind, so that others have theirs."""

BOOKIE_CALLS_MAX: Final = 12_000
"""Calls at once in gRPC, which refuses without a look at the kind: above the sum of the bounds."""

BOOKIE_RECEIVE_S: Final = 5.0
"""A request of a few bytes that is not there by then will not come."""

BOOKIE_ANSWER_BYTES_MAX: Final = 64 * MIB
"""Bytes read for clients and not sent yet: at a gigabyte per second, a few network round trips."""

BOOKIE_UNREAD_GRACE_S: Final = 1.0
"""While others wait for memory, an answer that its client has not read for so long is cut; the
client asks again for what it lacks. One that reads takes its part within milliseconds."""

BOOKIE_UNREAD_S: Final = 30.0
"""An answer that its client has not read for so long is cut in any case. Consumers pause, and ask
again afterwards."""

BOOKIE_MEMORY_BYTES: Final = 512 * MIB
"""Default of a bookie's memory budget: the write cache takes half of it."""

BOOKIE_MEMORY_HIGH: Final = 0.75
"""Share of the budget from which on clients that keep a bookie waiting are cut. A full write cache
and an idle interpreter take two thirds."""

BOOKIE_HELD_BYTES_MAX: Final = 1 * MIB
"""What a connection may have on its way while memory is short: with more, its calls are cut."""

BOOKIE_RECEIVE_SHORT_S: Final = 0.25
"""While memory is short, a request that is not there by then is cut."""

BOOKIE_MEMORY_INTERVAL_S: Final = 0.025
"""How often a bookie looks at its memory: gRPC takes in about 30 MiB in this time."""

BOOKIE_CONNECTIONS_MAX: Final = 10_000
"""Connections of clients at once, fewer where the limit of open files is lower. Each client has one
to each bookie; further ones are closed at once, and their clients try again later."""

BOOKIE_ADMIN_CONNECTION_S: Final = 10.0
"""A connection to the admin port ends after this, once its request is answered: scrapers connect
again, and who sends half a request does not keep others out."""

BOOKIE_ADMIN_CONNECTIONS_MAX: Final = 32
"""Scrapers and health checks are few; further connections to the admin port are closed at once."""

BOOKIE_HANDSHAKE_TIMEOUT_S: Final = 10.0
"""A connection that says nothing for this long is closed: it would take a client's place."""

BOOKIE_COLLECT_INTERVAL_S: Final = 60.0
"""Between two searches of a bookie for old cyclic garbage."""

BOOKIE_COLLECT_OBJECTS_MAX: Final = 150_000
"""A search among so many objects of the storage takes about 20 ms; with more it is put off."""

BOOKIE_COLLECT_OVERDUE_S: Final = 3600.0
"""A bookie that was busy all the time searches all the same: a second in an hour."""

BOOKIE_OPEN_LOGS_MAX: Final = 256
"""Entry logs of one directory that stay open for readers; of more the one used last is closed."""

BOOKIE_READ_THREADS: Final = 4
"""Reads wait for the disk or copy memory; both leave the interpreter's lock to others."""

BOOKIE_RANGES_PER_MESSAGE: Final = 10_000
"""About 100 KB of the answer that lists a ledger's entries."""

BOOKIE_REFRESH_INTERVAL_S: Final = 5.0
"""How often a bookie compares its state and free space with what it has registered."""

BOOKIE_CONNECT_ATTEMPTS_S: Final = (1.0, 2.0, 4.0)
"""Lengths of a starting bookie's attempts to reach the metadata store; the last one is repeated.
The first is short, because services that are started together find each other quickly."""

BOOKIE_WITHDRAW_TIMEOUT_S: Final = 3.0
"""A stopping bookie withdraws its registration for this long; otherwise the session ends later."""

BOOKIE_CLOSE_TIMEOUT_S: Final = 60.0
"""Enough to flush a whole write cache to a slow disk. Then the process ends all the same: the
journal has everything that was acknowledged."""

JOURNAL_STALLED_S: Final = 2.0
"""A bookie whose journal has not synced for this long says so. Less than `ADD_TIMEOUT_S`, so that
clients need not find out by silence; more than a disk that is only busy takes (rule S15)."""

JOURNAL_LOOK_S: Final = 0.25
"""How often a bookie looks whether its journal stalls: a small part of the time above."""

# -- time ------------------------------------------------------------------------------------------

ADD_TIMEOUT_S: Final = 5.0
"""A bookie that acknowledges nothing for this long while adds wait is silent: failed (rule P11)."""

SLOW_BOOKIE_GRACE_S: Final = 1.0
"""A bookie that is silent this long *and* over the byte bound is failed, if the others suffice
(rule P11)."""

REPLACEMENT_RETRY_S: Final = 1.0
"""A failed bookie that nobody could replace is looked at again after this long."""

BOOKIE_RETURN_DELAY_S: Final = 10.0
"""A bookie that failed twice stays away from its place in an ensemble for this long, then twice as
long each time; it has to work for as long to begin afresh. Each return costs a metadata write and
a fragment, and a bookie whose disk hangs answers probes as if it were well: with this there are
three of them in a minute (rule P10)."""

BOOKIE_RETURN_DELAY_S_MAX: Final = 120.0
"""Longest of these pauses: a bookie that was mended is used again after at most this long."""

STALLED_BOOKIES_WAIT_S: Final = 30.0
"""How long a writer waits for bookies that are alive and acknowledge nothing, when it cannot do
without them: to give them up would end the ledger. Disks that stall all at once (a storage network
that fails over, a host that is moved) are back in less (rule P11)."""

BUSY_RETRY_S: Final = 0.05
"""First pause before a bookie that said it is busy is sent the same again; it doubles."""

BUSY_RETRY_S_MAX: Final = 1.0
"""Longest of these pauses: what a bookie refuses as busy is small work for it."""

WRITER_CLOSE_GRACE_S: Final = 0.25
"""A closing writer lets the slowest replica catch up for so long, to leave WQ copies behind."""

TIMER_STEP_S: Final = 0.005
"""A client's timer rounds up to this: what is due together is called together, at most this often.
A quarter of the shortest time that a machine waits for (``EXPLICIT_LAC_DELAY_S``)."""

MACHINE_TICK_S: Final = 0.02
"""Between two looks of a machine at the clock at least: what is due already and could not be done
yet is not tried more often."""

MACHINE_TICK_S_MAX: Final = 4.0
"""Between two looks of a busy machine at the clock at most, whatever time it names: what it forgot
to name is this late. Ten thousand machines that wait cost some hundredths of a core with it."""

LAC_DISPUTE_S: Final = 1.0
"""A reader that asks for the last add confirmed waits so long for bookies that may support what one
alone says; then they count as failed. One that is silent delays an open by no more than this."""

TAIL_FIRST_LOOK_S: Final = 1.0
"""A tail begins with the newest metadata if they come within this time, else with those it has."""

TAIL_RETRY_DELAY_S_MAX: Final = 2.0
"""The longest pause before a tail tries again to read metadata that it could not read."""

TAIL_METADATA_WAIT_S: Final = 300.0
"""A tail that can deliver nothing more without new metadata waits for them so long: longer than a
restart of all ZooKeeper servers, and an error before a human would wonder."""

TAIL_PAUSE_S: Final = 0.05
"""Between rounds of long polls that came to nothing at once, as when bookies are down."""

READ_TIMEOUT_S: Final = 10.0
"""A bookie that brings nothing of what it was asked for within this time is silent. The time that
a reader takes over what it has been brought does not count. Busy bookies are asked again for so
long."""

READ_CALL_S_MAX: Final = 600.0
"""One read request in all: a bookie wants a bound from every caller. 64 MiB at 1 Mbit/s."""

READ_PARK_S: Final = 1.0
"""A consumer that has taken nothing for this long has stopped: the call is ended, and what it held
at the bookie is free. When the consumer goes on, the rest is asked for again."""

BUSY_PAUSE_S: Final = 0.1
"""A bookie that says that it is busy is asked again after about this long; it doubles each time."""

BUSY_PAUSE_S_MAX: Final = 2.0
"""The longest of these pauses: a bookie that has room again gets its readers back soon."""

LOOP_LATE_S: Final = 0.1
"""An event loop that is this late stood still, because somebody computed on it. What has arrived is
looked at before anybody is called silent."""

SPECULATIVE_READ_DELAY_S: Final = 0.5
"""Without an answer for this long the next replica is asked too."""

LONG_POLL_S_MAX: Final = 30.0
"""A bookie holds a tail request at most this long."""

BOOKIE_SUSPECT_S: Final = 10.0
"""A bookie that failed an add is used again for so long only after a probe; one that a speculative
read overtook is asked last. About the time that a restart of a bookie takes."""

BOOKIE_PROBE_TIMEOUT_S: Final = 1.0
"""A bookie that answers a probe later than this would fail the next add as well."""

BOOKIE_PROBE_HOLDS_S: Final = 0.5
"""What a probe brought is true for so long, for all writers of a client. Half of
``REPLACEMENT_RETRY_S``: who looks again after that asks again."""

BOOKIE_PROBES_MAX: Final = 16
"""Probes at once of one client: a rack of silent bookies is looked through in a few seconds."""

METADATA_TIMEOUT_S: Final = 15.0
"""One metadata operation, retries over a lost connection included."""

PORTAL_STOP_TIMEOUT_S: Final = 2.0
"""How long the end of a process waits for the thread of the blocking client. What that thread does
is lost with the process anyway."""

EXPLICIT_LAC_DELAY_S: Final = 0.02
"""An idle writer tells its bookies the last add confirmed after this long without a new add."""

# -- streams ---------------------------------------------------------------------------------------

COMMIT_CLOCK_AHEAD_MS_MAX: Final = 60_000
"""Two writers whose clocks differ by less give their commits times that ascend: the one behind
takes the time of the other. A commit that is further ahead was made by a wrong clock."""

COMMIT_TIME_RESETS_MAX: Final = 100
"""How often commit times of a stream may go back before every later one takes the latest time: each
reset is a search of its own for readers that start at a time, and a number in the head."""

LIST_REMOVAL_S: Final = 5.0
"""How long a commit that failed tries to delete the ledger of its segment list."""

# -- the Spark connector: retries and waiting ------------------------------------------------------

RETRY_S: Final = 120.0
"""On Spark's driver. As long as Spark's own default for a lost network peer
(``spark.network.timeout``)."""

RETRY_AT_START_S: Final = 30.0
"""At the start of a query a store that does not answer is more likely a wrong URI: say so soon."""

RETRY_IN_TASK_S: Final = 20.0
"""In a task, which Spark repeats as well: long enough for bookies that start again."""

RETRY_PAUSES_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Before each attempt; the last one repeats. Short ones first, because most outages are short."""

METADATA_LAG_S: Final = 2.0
"""How far a ZooKeeper server may lag behind the one that a query asked before its restart."""

STREAM_CREATE_ATTEMPTS: Final = 3
"""Opening a stream that others create and delete at the same time."""

POLL_WAIT_S: Final = 0.1
"""How long a poll for the newest rows waits if there are none. Without it Spark asks every 11 ms;
it asks the sources of a query one after the other, so a longer wait would slow the others down."""

TRIGGER_DELAY_S_DEFAULT: Final = 900.0
"""How long ``minRowsPerTrigger`` may hold rows back; 15 minutes, as in Spark's Kafka source."""

# -- the Spark connector: sizes --------------------------------------------------------------------

PARTITIONS_MAX: Final = 2048
"""A partition costs about 50 ms to start: 100 s on one core. Beyond it partitions grow instead."""

PARTITIONS_WANTED: Final = 8
"""A range is cut into this many partitions if their size stays within the two bounds below."""

PARTITION_BYTES_MIN: Final = 16 * MIB
"""Below this the start of a task costs more than its data."""

PARTITION_BYTES_MAX: Final = 128 * MIB
"""Spark's own partition size for files."""

SPARK_BATCH_BYTES_TARGET: Final = 1 * MIB
"""Smaller Arrow batches are joined up to this: Spark moves batches of 1 to 2 MB fastest."""

SPARK_BATCH_BYTES_MAX: Final = 4 * MIB
"""Larger Arrow batches are cut into slices of the target."""

RAW_ENTRIES_PER_BATCH: Final = 4096
"""Raw entries of a few bytes are given to Spark in Arrow batches of at most this many."""

SEGMENTS_PER_FETCH: Final = 1024
"""Commits are read in steps of this many segments while a limited trigger looks for its end."""

TASK_KEPT_BYTES_MAX: Final = 16 * MIB
"""Arrow bytes a task keeps to write them again: most micro-batches fit, and memory stays small."""

RAW_READERS_MAX: Final = 64
"""Raw ledgers that one process keeps open per connection."""

RUNS_REMEMBERED_MAX: Final = 1024
"""Runs of queries whose first micro-batch the process that commits remembers."""
