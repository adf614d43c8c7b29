"""Every number that is policy, each with its reason: bounds, timeouts, retries and their pauses."""

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

METADATA_ATTEMPTS: Final = 3
"""How often a metadata change is sent whose outcome stays unknown. Each attempt lasts for
``METADATA_TIMEOUT_S`` already, so more would only delay the error."""

METADATA_RETRY_DELAY_S: Final = 0.2
"""Pause before metadata are read again after ZooKeeper could not be reached."""

METADATA_READS_IN_FLIGHT_MAX: Final = 64
"""Nodes of a listing read at once: the answers are large, and each is kept until all are there."""

LEDGER_ID_BLOCK: Final = 64
"""Ledger ids taken per round trip. Unused ones are lost when a client ends; ids are plentiful."""

REGISTER_RETRY_DELAY_S: Final = 0.2
"""Pause between attempts of a bookie to register again after a lost session."""

DIRECTORY_REFRESH_S: Final = 30.0
"""A client reads the list of bookies again this often: watches are hints, and free space drifts."""

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

MESSAGE_BYTES_MAX: Final = ENTRY_PAYLOAD_BYTES_MAX + 1 * MIB
"""gRPC message size both ways: the largest entry, its frame, and room for the fields around it."""

READ_CHUNK_BYTES_TARGET: Final = 1 * MIB
"""A bookie streams a range in chunks of about this size (a single larger entry is one chunk)."""

READ_REQUEST_BYTES_MAX: Final = 64 * MIB
"""A bookie ends one range read after this many bytes; the reader asks for the rest."""

# -- work in flight --------------------------------------------------------------------------------

WRITER_BYTES_IN_FLIGHT_MAX: Final = 32 * MIB
"""Payload a writer holds for the slowest live bookie of its ensemble; then producers wait."""

BOOKIE_APPEND_BYTES_IN_FLIGHT_MAX: Final = 128 * MIB
"""Append bytes a bookie holds before they are durable; then it stops reading its streams."""

# -- time ------------------------------------------------------------------------------------------

ADD_TIMEOUT_S: Final = 5.0
"""A bookie that acknowledges nothing for this long while adds wait is silent: failed (rule P11)."""

SLOW_BOOKIE_GRACE_S: Final = 1.0
"""A bookie that is silent this long *and* over the byte bound is failed, if the others suffice
(rule P11)."""

READ_TIMEOUT_S: Final = 10.0
"""One read request to one bookie."""

SPECULATIVE_READ_DELAY_S: Final = 0.5
"""Without an answer for this long the next replica is asked too."""

LONG_POLL_S_MAX: Final = 30.0
"""A bookie holds a tail request at most this long."""

BOOKIE_SUSPECT_S: Final = 10.0
"""A bookie that failed an add is used again for so long only after a probe; one that a speculative
read overtook is asked last. About the time that a restart of a bookie takes."""

BOOKIE_PROBE_TIMEOUT_S: Final = 1.0
"""A bookie that answers a probe later than this would fail the next add as well."""

METADATA_TIMEOUT_S: Final = 15.0
"""One metadata operation, retries over a lost connection included."""

PORTAL_STOP_TIMEOUT_S: Final = 2.0
"""How long the end of a process waits for the thread of the blocking client. What that thread does
is lost with the process anyway."""

EXPLICIT_LAC_DELAY_S: Final = 0.02
"""An idle writer tells its bookies the last add confirmed after this long without a new add."""
