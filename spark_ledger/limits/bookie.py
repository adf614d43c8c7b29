"""Bounds and intervals of a bookie: calls, memory, connections, disks, start and end."""

from __future__ import annotations

from typing import Final

from spark_ledger.limits import KIB, MIB
from spark_ledger.limits.entries import MESSAGE_BYTES_MAX

THREAD_TURN_S: Final = 0.001
"""For so long a thread of a bookie keeps the interpreter while another one wants it. With Python's
5 ms the service loop waits that long behind a flush each time that it comes back from gRPC or from
the kernel. With half of this, changes of threads took more than shorter waits gave back."""

# -- appends ---------------------------------------------------------------------------------------

BOOKIE_APPEND_BYTES_IN_FLIGHT_MAX: Final = 64 * MIB
"""Append bytes a bookie holds before they are durable; then it stops reading its streams. Twice
what one writer may have in flight, and a third of a second of a fast disk."""

BOOKIE_APPEND_SHARED_BYTES: Final = 16 * MIB
"""Append bytes that all connections together may have in flight before each is held to its share: a
batch of the journal. Whoever waits for each of its entries waits behind little more than that."""

BOOKIE_WAITING_BYTES_MAX: Final = 32 * MIB
"""Append bytes that wait for room in the write cache; further adds are told to come back later."""

ADDS_GO_ON_AT_ONCE: Final = 50
"""Adds that waited for room, or for the key of their ledger, go on in such numbers, and others
have a turn in between."""

APPEND_TURN_S: Final = 0.001
"""All append streams together keep the service loop for so long; then others have a turn."""

RECEIVE_S_PER_BYTE: Final = 1e-9
"""What the service loop takes to receive a byte of a large message, as measured: one copy. It is
part of the turn that follows, as nobody knows before that a message comes."""

ADD_COST_BYTES: Final = 32 * KIB
"""What an add counts beside its bytes: the service works as long for one as the disk for these."""

BOOKIE_REFUSED_APPENDERS_MAX: Final = 65_536
"""On all append streams. Refused appenders are remembered, so that nothing behind a refusal is
stored. Of more the stream that has most of them is ended, its client starts afresh."""

BOOKIE_REFUSED_OF_A_LEDGER_MAX: Final = 4
"""So many refused appenders of a ledger are remembered on an append stream. More write to it at
once in no process of ours: its writer, recoveries, and a copy of repair. Each opens the next one
when it has read the refusal of the last, so behind so many the oldest refusal was read."""

BOOKIE_MALFORMED_ADDS_MAX: Final = 16
"""On one append stream. Each is answered; a client that sends more of them is not one of ours."""

BOOKIE_UNKNOWN_ADDS_MAX: Final = 256
"""On one append stream, before an add of it was stored: ledgers that are not in the metadata, or
whose key was wrong. A client of ours has a few when its ledgers are deleted; one that asks for more
looks for work to give to ZooKeeper."""

BOOKIE_HELD_MESSAGES_BYTES: Final = 16 * MIB
"""Messages of streams that have stored nothing, held while the first of their ledgers are looked
up. What comes above it is taken in at once."""

BOOKIE_HELD_MESSAGE_S: Final = 1.0
"""Such a message is held for this long, and none of its stream behind it, unless a ledger of it was
refused as unknown: then it is held until its look-ups have ended. With the time of a look-up that
is given up (``FIRST_CONTACT_TIMEOUT_S``) it is below the time after which a writer takes a bookie
for silent."""

BOOKIE_UNSENT_RESULTS_MAX: Final = 4_096
"""Results that wait for a client which does not read them; then its stream is not read either."""

# -- first contact with a ledger -------------------------------------------------------------------

FIRST_CONTACT_TIMEOUT_S: Final = 3.0
"""A bookie looks up the key of a ledger that it has no record of for this long, then it says that
it is busy. Below the time after which a writer takes it for silent."""

FIRST_CONTACT_LOOKUPS_MAX: Final = 64
"""Keys that a bookie looks up at a time: some 10,000 new ledgers per second, and a stranger who
asks for ledgers that do not exist puts no more load on ZooKeeper. Connections take turns. Of an
append stream that has stored nothing no more than these wait; the next ones stay in its message."""

FIRST_CONTACT_MISS_S: Final = 0.002
"""Connections whose last look-up found no ledger begin their look-ups this far apart, all together:
500 in a second. Each takes some tenths of a millisecond of the service loop, with what else is done
for such an add: whoever asks for ledgers that do not exist had all of it."""

FIRST_CONTACT_PACED_MAX: Final = 4096
"""Connections of which a bookie remembers that their last look-up found nothing. Of more it forgets
the one that has had none for longest."""

FIRST_CONTACT_AT_FIRST_MAX: Final = 4
"""Keys that are looked up at a time for a connection of which no look-up has ended yet. It is ended
for a few hundred ledgers that do not exist, and connects again: with all places each time it had
another hundred look-ups that nothing paced. Whoever has new ledgers waits for one answer more."""

FIRST_CONTACT_FOUND_MAX: Final = 16_384
"""Connections of which a bookie remembers that their last look-up found a ledger: more than it may
have at once."""

FIRST_CONTACT_LOOKUPS_WAITING_MAX: Final = 4096
"""Ledgers whose first request waits; beyond it a bookie is busy to whoever has most."""

BOOKIE_KEY_WAITING_BYTES_MAX: Final = 32 * MIB
"""Append bytes that wait for keys; beyond it a bookie is busy to whoever has most. Above what one
connection may have in flight: a client that is alone never meets it."""

# -- calls of each kind at once --------------------------------------------------------------------

BOOKIE_APPEND_STREAMS_MAX: Final = 2_048
"""A client has one per bookie. Each kind of call has a bound of its own, so that many of one kind
never refuse another."""

BOOKIE_FENCES_MAX: Final = 1_024
"""Reads of recoveries, too: they fence with their first question."""

BOOKIE_READS_MAX: Final = 1_024
"""Far more than are served at once; the rest wait in a row, and hold no data."""

BOOKIE_LONG_POLLS_MAX: Final = 4_096
"""Readers at the tail of a ledger. Above it a client asks again later."""

BOOKIE_WATCHERS_AT_ONCE: Final = 50
"""Readers at the tail of one ledger are woken in such numbers, and others have a turn in between:
to answer four thousand takes half a second."""

BOOKIE_CONFIRMS_MAX: Final = 1_024
"""Writers that tell the last add confirmed as they become idle, and readers that ask for it."""

BOOKIE_LISTS_MAX: Final = 64
"""Each may be long."""

BOOKIE_DESCRIBES_MAX: Final = 64
"""People, probes and tools that ask how a bookie does."""

BOOKIE_HEALTH_WATCHES_MAX: Final = 256
"""Balancers, and clients that have gRPC watch the health of what they call: one for each of their
connections. Each stays for as long as it likes."""

BOOKIE_RECEIVING_MAX: Final = 1_024
"""Calls whose request has not arrived as a whole: with honest clients it comes with the call. One
connection may have a share of them (`BOOKIE_CONNECTION_SHARE`), then it is ended."""

BOOKIE_LEFTOVERS_MAX: Final = 1_024
"""Calls that are answered, and whose clients do not even read a few bytes within seconds."""

BOOKIE_LEFTOVER_S: Final = 3.0
"""So long the answer of a call has to be read when there are many of them. Some thousands of long
polls of one ledger end together, and a busy service loop takes up to a second to send the answers.
Whoever reads none connects again, and opens as many calls as it can: with 1 s it was busy with that
for twice the time."""

BOOKIE_LEFTOVERS_OF_ONE_MAX: Final = 96
"""Of one connection, whose calls all end in one turn of the loop. Beside descriptions that nobody
reads, a minute of `tests.hostile` on two processors, a neighbour's p99 was 154 ms without this
bound and 85 ms with it."""

BOOKIE_LEFTOVER_OF_MANY_S: Final = 0.5
"""So long the oldest of a connection has to be read when it has that many."""

BOOKIE_LEFTOVERS_AT_ONCE_MAX: Final = 10_000
"""Of more the oldest are cut at once: above the sum of the bounds of all kinds, so that no calls
which end together are cut, and below `BOOKIE_CALLS_MAX`."""

BOOKIE_CONNECTION_SHARE: Final = 4
"""One connection may have one in so many of the calls of a kind, so that others have theirs."""

BOOKIE_CALLS_MAX: Final = 12_000
"""Calls at once in gRPC, which refuses without a look at the kind: above the sum of the bounds."""

BOOKIE_CALLS_WAITING: Final = 600
"""Calls that gRPC has, and the service loop has not taken yet: it takes some thousands in a second,
so more wait only in a flood. gRPC resets some above it, and a client of ours begins them again."""

BOOKIE_CALLS_WAITING_MAX: Final = 1_000
"""Above this it resets each new one."""

BOOKIE_RECEIVE_S: Final = 5.0
"""A request of a few bytes that is not there by then will not come."""

BOOKIE_READ_THREADS: Final = 4
"""Reads wait for the disk or copy memory; both leave the interpreter's lock to others. So many run
at once, and as many threads has each ledger directory for those that its disk does not answer."""

BOOKIE_READ_QUICK_S: Final = 0.25
"""A read that takes longer waits for its disk: others run in its place, and those behind it of the
same directory ask memory first."""

BOOKIE_READS_LENT_MAX: Final = 8
"""Reads that take longer, over all directories, for which others have the room for answers: what
comes late is above that room, at most as much again of parts as they are. More are told to come
later, as a storage network that goes on brings them all at once."""

BOOKIE_READS_LATE_MAX: Final = 12
"""Those that take longer, also of clients that were told so or have left: each has a thread and a
buffer, and may bring a largest entry when its disk goes on. Where there are so many, a directory
has one thread: three that hang cost the others nothing, and twelve keep 21 threads and not 48."""

BOOKIE_RANGES_PER_PAGE: Final = 10_000
"""Ranges in one page of a ledger's entries: about 100 KB of an answer. No more rows of the index
are read for it, so that a ledger of a million stripes is never listed at once; of a striped one,
whose blocks are read for it, as many as the disk brings in ``BOOKIE_READ_QUICK_S``."""

BOOKIE_LEDGERS_PER_ANSWER: Final = 10_000
"""Ids in an answer that lists ledgers: 50 KB, and some milliseconds of the index."""

# -- memory, and clients that hold it --------------------------------------------------------------

BOOKIE_MEMORY_BYTES: Final = 512 * MIB
"""Default of a bookie's memory budget: the write cache takes half of it."""

BOOKIE_MEMORY_HIGH: Final = 0.75
"""Share of the budget from which on a bookie hangs up on clients that keep it waiting. A full write
cache and an idle interpreter take two thirds."""

BOOKIE_PROCESS_BYTES: Final = 80 * MIB
"""What a bookie takes before it has a client: the interpreter, gRPC, the libraries."""

BOOKIE_MEMORY_BYTES_PER_S: Final = 1200 * MIB
"""What gRPC takes in at most, with a processor of its own."""

BOOKIE_MEMORY_INTERVAL_S: Final = 0.025
"""How often a bookie looks at its memory when that may soon be short: 30 MiB are taken in."""

BOOKIE_MEMORY_REST_S: Final = 0.5
"""How often when nothing has been called or received since the last look, and what the open calls
may have on their way would leave half of the memory that is left."""

BOOKIE_BEAT_S: Final = 0.125
"""Looks that are this far apart or more are taken together: half of `STALL_LOOK_S`, and less than
what the budget of memory allows when little of it is used."""

BOOKIE_MEMORY_INTERVAL_S_MAX: Final = 0.25
"""How often at least. Forty looks a second were over 1 % of a core, for each idle bookie."""

RACK_SCRIPT_S: Final = 10.0
"""A program that is asked for a bookie's rack and does not end within this ends the start."""

BOOKIE_ANSWER_BYTES_MAX: Final = 64 * MIB
"""Bytes read for clients and not sent yet: at a gigabyte per second, a few network round trips."""

BOOKIE_UNREAD_GRACE_S: Final = 2.0
"""While others wait for memory, the connection of an answer that was not read for so long is ended.
A client that reads takes its part within milliseconds, and ours ends a call whose consumer pauses
in half of this (``READ_PARK_S``)."""

BOOKIE_UNREAD_S: Final = 30.0
"""The connection of an answer that was not read for so long is ended in any case."""

BOOKIE_HEADERS_BYTES_MAX: Final = 4_096
"""Headers of a call, as gRPC counts them: the name of a bookie, a deadline, what a proxy adds."""

BOOKIE_HELD_BYTES_MAX: Final = 1 * MIB
"""What a connection may have on its way while memory is short: with more, its calls are cut."""

BOOKIE_UNMEASURED_BYTES_MAX: Final = 256 * KIB
"""What calls and frames of a connection may have taken since the kernel was last asked what it has
received. It could hold that much unseen; each call is granted far more than it takes."""

BOOKIE_RECEIVE_SHORT_S: Final = 0.25
"""While memory is short, a request that is not there by then is cut."""

BOOKIE_CONNECTION_LOOK_S: Final = 0.025
"""How often a bookie looks for messages that do not arrive, while requests are on their way, or
there are append streams that have stored nothing: gRPC takes in some 30 MiB meanwhile."""

BOOKIE_CONNECTION_SOON_S: Final = 0.01
"""How often while there are some, or requests are late: a client that sends as fast as it can has
10 MiB taken in meanwhile, and forty of them share that."""

BOOKIE_CONNECTION_IDLE_S: Final = 0.25
"""How often it looks whether there are any: a bookie that has nothing to do sleeps."""

BOOKIE_CONNECTIONS_LOOKED_AT: Final = 64
"""Append streams that are looked at then: a fifth of a millisecond. Two thousand have their turn
within a second."""

BOOKIE_REQUEST_LATE_S: Final = 0.005
"""A request that is not there by then, on a connection that has sent far more than one, is no
request of ours: they have a few bytes, and come with their call."""

BOOKIE_STALLED_MESSAGE_S: Final = 0.25
"""A client that is in the middle of a message and sends nothing for so long has stopped. One that
waits for a retransmission of the network is back in less."""

BOOKIE_UNFINISHED_BYTES_MAX: Final = 64 * MIB
"""Parts of messages of all clients that have stopped in the middle: four of the largest entries.
What is above is not kept for them: its memory would be taken from the write cache."""

BOOKIE_LOOKAHEAD_BYTES: Final = 2 * MIB
"""What a client may send ahead of what a bookie reads of it, on each call. A message that is being
read has a window of its own; 8 MiB brought nothing more to writers, and to whoever sends nonsense
six more of it, which gRPC takes in before anybody has looked at the first."""

BOOKIE_CALL_BYTES_MAX: Final = BOOKIE_LOOKAHEAD_BYTES + MESSAGE_BYTES_MAX
"""What gRPC takes in for one call before the service is asked: a message, and the look-ahead."""

BOOKIE_NONSENSE_BYTES_S: Final = 16 * MIB
"""After bytes that no client of this system sends nothing more is read from the connection for as
long as they take at this rate, and those that come from several connections wait one behind the
other. To receive and look at 16 MB keeps everybody else waiting for some hundredths of a second,
and a client that sends such bytes sends more of them, on a hundred connections if it likes."""

BOOKIE_NONSENSE_PAUSE_S_MAX: Final = 10.0
"""What one connection waits at most: long enough that a thousand of them are no load."""

BOOKIE_STRANGER_BYTES_S: Final = 16 * MIB
"""What connections that have not stored anything yet may send per second, all together, of messages
that are above 1 MiB and not complete: parts of messages that never end cost whoever sends them
nothing, and gRPC a second for a gigabyte. Above it they are not heard: the kernel drops what they
send, and TCP sends it again."""

BOOKIE_STRANGER_BURST_BYTES: Final = 24 * MIB
"""What they may send at once: the largest entry as the first of a client, and half of another."""

BOOKIE_STRANGERS_AT_ONCE: Final = 4
"""So many go on meanwhile while they make progress, for `BOOKIE_RECEIVE_S` at most: each may be an
honest client's first entry, which is there in some hundredths of a second."""

BOOKIE_UNHEARD_S: Final = 2.0
"""A connection that stopped in the middle of a message, and was not heard for this long, is ended.
Whoever is ended connects and sends again, so each second here is one in which it costs nothing;
more would be memory. One that had no turn yet has `BOOKIE_RECEIVE_S`."""

BOOKIE_COLLECT_INTERVAL_S: Final = 60.0
"""Between two searches of a bookie for old cyclic garbage."""

BOOKIE_COLLECT_OBJECTS_MAX: Final = 150_000
"""A search among so many objects of the storage takes about 20 ms; with more it is put off."""

BOOKIE_COLLECT_OVERDUE_S: Final = 3600.0
"""A bookie that was busy all the time searches all the same: a second in an hour."""

# -- connections and files -------------------------------------------------------------------------

BOOKIE_CONNECTIONS_MAX: Final = 10_000
"""Connections of clients at once, fewer where the limit of open files is lower. Each client has one
to each bookie; further ones are closed at once, and their clients try again later."""

BOOKIE_CONNECTIONS_FREE_SHARE: Final = 16
"""One in so many is kept free for new clients: those who were idle for longest give way, and
connect again when they have something to ask."""

BOOKIE_IDLE_S: Final = 1.0
"""A connection without a call for so long is idle; less may be a pause between two."""

BOOKIE_CONNECTIONS_LOOK_S: Final = 0.5
"""Between two looks at all connections: ten thousand take some hundredths of a second."""

BOOKIE_HANDSHAKE_TIMEOUT_S: Final = 10.0
"""A connection that says nothing for this long is closed: it would take a client's place."""

BOOKIE_ADMIN_CONNECTIONS_MAX: Final = 32
"""Scrapers and health checks are few; further connections to the admin port are closed at once."""

BOOKIE_ADMIN_CONNECTION_S: Final = 10.0
"""A connection to the admin port ends after this, once its request is answered; it is cut if its
client has not read the answer after as long again. Scrapers connect again, and who sends half a
request, or reads no answer, does not keep others out."""

BOOKIE_ADMIN_SHARE: Final = 10
"""Metrics are made for one in so much time at most, and as much for the status: whoever asks
meanwhile shares one answer. Thirty-two connections that asked in turn took 0.6 of a processor."""

BOOKIE_ADMIN_PAUSE_S_MAX: Final = 0.5
"""However long metrics take on a busy machine: scrapers give up after seconds."""

BOOKIE_OPEN_LOGS_MAX: Final = 256
"""Entry logs of one directory that stay open for readers; of more the one used last is closed."""

# -- disks -----------------------------------------------------------------------------------------

JOURNAL_STALLED_S: Final = 2.0
"""A bookie whose journal has not synced for this long says so. Less than `ADD_TIMEOUT_S`, so that
clients need not find out by silence; more than a disk that is only busy takes (rule S15)."""

LEDGERS_STALLED_S: Final = 3.0
"""A flush that adds wait for, and that has made no progress for this long, stalls like a journal.
Longer than one commit of an index with a hundred thousand changed ledgers takes (rule S15)."""

READS_STALLED_S: Final = 2.0
"""A ledger directory of which a read has not ended for so long says so. When all its threads wait
so long reads are told to come later: their clients would wait five times as long (rule S15)."""

STALL_LOOK_S: Final = 0.25
"""How often a bookie looks whether its disks stall: a small part of the times above."""

HELD_ENTRIES_WAIT_S: Final = 0.25
"""The service waits so long for a ledger disk, to compare what is sent again with what is held.
Then it is busy for such adds until the disk answers, and waits for this disk no more until it was
in time again. What a slow disk has read is kept for the add that asked (rule S15). Not above
`STALL_LOOK_S`: a look that comes late proves nothing."""

LOOP_BEAT_S: Final = 1.0
"""How often the loop of a bookie's service shows that it turns. The longest turn that was measured
took 0.03 s."""

LOOP_STILL_TOLD_S: Final = 5.0
"""A loop that stands still for so long is told, with what each thread does."""

LOOP_STILL_S: Final = 30.0
"""And after so long the process ends: it is registered, and answers nobody."""

# -- start, registration, end ----------------------------------------------------------------------

BOOKIE_CONNECT_ATTEMPTS_S: Final = (1.0, 2.0, 4.0)
"""Lengths of a starting bookie's attempts to reach the metadata store; the last one is repeated.
The first is short, because services that are started together find each other quickly."""

BOOKIE_REFRESH_INTERVAL_S: Final = 5.0
"""How often a bookie compares its state and free space with what it has registered."""

BOOKIE_WITHDRAW_TIMEOUT_S: Final = 3.0
"""A stopping bookie withdraws its registration for this long; otherwise the session ends later."""

BOOKIE_READS_END_S: Final = 5.0
"""A stopping bookie waits this long for reads whose calls are over, so that no file is closed under
them: as long as a slow disk takes for one."""

BOOKIE_EXIT_S: Final = 5.0
"""And then this long for threads that a disk holds up, before the process ends without them."""

BOOKIE_CLOSE_TIMEOUT_S: Final = 60.0
"""Enough to flush a whole write cache to a slow disk. Then the process ends all the same: the
journal has everything that was acknowledged."""
