"""Timeouts and bounds of the client: writers, readers, and what it thinks of bookies."""

from __future__ import annotations

from typing import Final

from spark_ledger.limits import MIB

# -- writers ---------------------------------------------------------------------------------------

WRITER_BYTES_IN_FLIGHT_MAX: Final = 32 * MIB
"""What a writer holds for the slowest live bookie of its ensemble; then producers wait."""

WRITER_ENTRY_BYTES: Final = 400
"""About what an entry takes in a writer beside its payload: future, header, frame in a run, and the
heads of objects. Measured: 310 bytes beside an empty payload, 420 beside one of 20 bytes."""

WRITER_QUEUED_BYTES_FACTOR: Final = 4
"""An append is refused when more than this many times the bound on bytes in flight is queued, or as
many times ``APPEND_BATCH_ENTRIES_MAX``. A task that waits for room can pass that bound with one
batch and does not come near this one; one that never waits would fill the memory without it.
Threads always wait, and are not refused: those that are woken together leave a batch each
(rule P11)."""

APPEND_BATCH_ENTRIES_MAX: Final = 100_000
"""Entries of one ``append_many``: the loop seals them in one turn, a tenth of a second for so many,
and looks at nothing else meanwhile."""

ADD_TIMEOUT_S: Final = 5.0
"""A bookie that acknowledges nothing for this long while adds wait is silent: failed (rule P11)."""

SLOW_BOOKIE_GRACE_S: Final = 1.0
"""A bookie that is silent this long *and* holds up ``WRITER_BYTES_IN_FLIGHT_MAX`` of payload is
failed, if the others suffice (rule P11)."""

STALLED_BOOKIES_WAIT_S: Final = 30.0
"""How long a writer waits for bookies that are alive and acknowledge nothing, when it cannot do
without them: to give them up would end the ledger. Disks that stall all at once (a storage network
that fails over, a host that is moved) are back in less (rule P11)."""

BUSY_RETRY_S: Final = 0.05
"""First pause before a bookie that said it is busy is sent the same again; it doubles."""

BUSY_RETRY_S_MAX: Final = 1.0
"""Longest of these pauses: what a bookie refuses as busy is small work for it."""

EXPLICIT_LAC_DELAY_S: Final = 0.02
"""An idle writer tells its bookies the last add confirmed after this long without a new add."""

CONFIRMATION_CALLS_MAX: Final = 4
"""Calls to one bookie that tell what was confirmed. What comes meanwhile shares the next one; with
a single call, one ledger whose key has to be looked up would keep all others waiting."""

WRITER_CLOSE_GRACE_S: Final = 0.25
"""A closing writer lets the slowest replica catch up for so long, to leave WQ copies behind."""

# -- bookies that fail, and that come back ---------------------------------------------------------

REPLACEMENT_RETRY_S: Final = 1.0
"""A failed bookie that nobody could replace is looked at again after this long."""

BOOKIE_RETURN_DELAY_S: Final = 10.0
"""A bookie that failed twice stays away from its place in an ensemble for this long, then twice as
long each time; it has to work for as long to begin afresh. Each return costs a metadata write and
a fragment, and a bookie whose disk hangs answers probes as if it were well: with this there are
three of them in a minute (rule P10)."""

BOOKIE_RETURN_DELAY_S_MAX: Final = 120.0
"""Longest of these pauses: a bookie that was mended is used again after at most this long."""

BOOKIE_SUSPECT_S: Final = 10.0
"""A bookie that failed an add is used again for so long only after a probe; one that a speculative
read overtook is asked last. About the time that a restart of a bookie takes."""

BOOKIE_LIED_S: Final = 120.0
"""A bookie that spoke of a fence which is not there is used for new ledgers only where there are
not enough others, for so long: each of them would cost an ensemble change (rule P18)."""

BOOKIE_PROBE_TIMEOUT_S: Final = 1.0
"""A bookie that answers a probe later than this would fail the next add as well."""

BOOKIE_PROBE_HOLDS_S: Final = 0.5
"""What a probe brought is true for so long, for all writers of a client. Half of
``REPLACEMENT_RETRY_S``: who looks again after that asks again."""

BOOKIE_PROBES_MAX: Final = 16
"""Probes at once of one client: a rack of silent bookies is looked through in a few seconds."""

BOOKIE_FLAPS_MAX: Final = 5
"""A bookie that failed so often within ``BOOKIE_FLAPS_WITHIN_S``, and answered in between, is in
quarantine: each of its failures is an ensemble change for every writer (rule P23)."""

BOOKIE_FLAPS_WITHIN_S: Final = 300.0
"""Failures of longer ago are forgotten: a bookie is restarted a few times in a rolling upgrade."""

BOOKIE_QUARANTINE_S: Final = 600.0
"""For so long a bookie in quarantine gets new data only where others do not suffice. Then it is
tried as any other; an operator's repair is seen without a command."""

# -- placement -------------------------------------------------------------------------------------

PLACEMENT_WEIGHT_MAX: Final = 3.0
"""A bookie gets at most three times what the one in the middle gets, however empty it is: all that
is new, and is read the most, would be on the few bookies that were added last."""

PLACEMENT_WEIGHT_MIN: Final = 0.1
"""And at least a tenth: one that is really full says so itself, by being read-only."""

PLACEMENT_STEPS_MAX: Final = 2000
"""Tries to fill an index with a rack, in one choice. All ensembles of five over four racks are not
as many; a step takes about 20 microseconds, and all of them must not hold up adds."""

# -- readers ---------------------------------------------------------------------------------------

READ_TIMEOUT_S: Final = 10.0
"""A bookie that brings nothing of what it was asked for within this time is silent. The time that
a reader takes over what it has been brought does not count. Busy bookies are asked again for so
long."""

READ_CALL_S_MAX: Final = 600.0
"""One read request in all: a bookie wants a bound from every caller. 64 MiB at 1 Mbit/s."""

READ_CHUNKS_AHEAD_MAX: Final = 2
"""Chunks (of about 4 MiB) that are read before the consumer has taken the first."""

READ_PARK_S: Final = 1.0
"""A consumer that has taken nothing for this long has stopped: the call is ended, and what it held
at the bookie is free. When the consumer goes on, the rest is asked for again."""

SPECULATIVE_READ_DELAY_S: Final = 0.5
"""Without an answer for this long the next replica is asked too."""

BUSY_PAUSE_S: Final = 0.1
"""A bookie that says that it is busy is asked again after about this long; it doubles each time."""

BUSY_PAUSE_S_MAX: Final = 2.0
"""The longest of these pauses: a bookie that has room again gets its readers back soon."""

LAC_DISPUTE_S: Final = 1.0
"""A reader that asks for the last add confirmed waits so long for bookies that may support what one
alone says; then an entry has to prove it. One that is silent delays an open by little more."""

TAIL_FIRST_LOOK_S: Final = 1.0
"""A tail begins with the newest metadata if they come within this time, else with those it has."""

TAIL_RETRY_DELAY_S_MAX: Final = 2.0
"""The longest pause before a tail tries again to read metadata that it could not read."""

TAIL_METADATA_WAIT_S: Final = 300.0
"""A tail that can deliver nothing more without new metadata waits for them so long: longer than a
restart of all ZooKeeper servers, and an error before a human would wonder."""

TAIL_PAUSE_S: Final = 0.05
"""Between rounds of long polls that came to nothing at once, as when bookies are down."""

TAIL_PAUSE_S_MAX: Final = 2.0
"""The longest of these pauses where bookies answer at once because they are fenced: it doubles. The
ledger gets a few entries at most, until somebody closes it, and tails hear of that without asking.
A recovery that was left in the middle is ended by the keeper, after minutes."""

TAIL_FETCH_BYTES_MAX: Final = 8 * MIB
"""What is read at once for all tails of a ledger, before they are told of it: 20 ms of a read. With
the largest entry behind it, it has room in what is kept."""

TAIL_KEPT_BYTES_MAX: Final = 32 * MIB
"""Entries that are kept for those tails of a ledger that have not taken them yet. A tail that is
further behind reads for itself."""

TAIL_ENTRY_BYTES: Final = 250
"""About what an entry takes beside its payload: tuple, numbers, and the heads of objects."""

# -- recovery --------------------------------------------------------------------------------------

RECOVERY_BYTES_MAX: Final = 32 * MIB
"""What a recovery holds of entries that were found and are not stored on all of their bookies: as
much as a writer. Reads wait then."""

RECOVERY_READ_BYTES_MAX: Final = 8 * MIB
"""One read request of a recovery. So much of each lane may be on its way when there is no room
left, and one entry more."""

# -- ledgers that could not be closed --------------------------------------------------------------

LEFT_OPEN_DELAY_S: Final = 1.0
"""Before a ledger that could not be closed is recovered, and between two of them: they are in
nobody's way, and after an outage of ZooKeeper all processes have some."""

LEFT_OPEN_DELAY_S_MAX: Final = 60.0
"""The longest pause, while ZooKeeper or the bookies do not answer."""

LEFT_OPEN_MAX: Final = 1_000
"""Ledgers of one connection that wait to be closed; any more are left to the keeper."""

# -- the loop --------------------------------------------------------------------------------------

TIMER_STEP_S: Final = 0.005
"""A client's timer rounds up to this: what is due together is called together, at most this often.
A quarter of the shortest time that a machine waits for (``EXPLICIT_LAC_DELAY_S``)."""

MACHINE_TICK_S: Final = 0.02
"""Between two looks of a machine at the clock at least: what is due already and could not be done
yet is not tried more often."""

MACHINE_TICK_S_MAX: Final = 4.0
"""Between two looks of a busy machine at the clock at most, whatever time it names: what it forgot
to name is this late. Ten thousand machines that wait cost some hundredths of a core with it."""

LOOP_LATE_S: Final = 0.1
"""An event loop that is this late stood still, because somebody computed on it. What has arrived is
looked at before anybody is called silent."""

PORTAL_STOP_TIMEOUT_S: Final = 2.0
"""How long the end of a process waits for the thread of the blocking client. What that thread does
is lost with the process anyway."""
