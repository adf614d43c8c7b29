"""Every limit of the product, each with its reason. A limit is a number, not a policy."""

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

# -- a bookie --------------------------------------------------------------------------------------

BOOKIE_REFUSED_APPENDERS_MAX: Final = 65_536
"""On one append stream. Refused appenders are remembered, so that nothing behind a refusal is
stored. A stream with more of them has been failing for days: it is ended, its client starts afresh.
"""

BOOKIE_UNSENT_RESULTS_MAX: Final = 4_096
"""Results that wait for a client which does not read them; then its stream is not read either."""

BOOKIE_CALLS_MAX: Final = 10_000
"""Calls at once, long polls and append streams included; more are refused by gRPC."""

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

# -- time ------------------------------------------------------------------------------------------

ADD_TIMEOUT_S: Final = 5.0
"""A bookie that acknowledges nothing for this long while adds wait is failed (not slow: silent)."""

SLOW_BOOKIE_GRACE_S: Final = 1.0
"""A bookie that is silent this long *and* over the byte bound is failed, if the others suffice."""

READ_TIMEOUT_S: Final = 10.0
"""One read request to one bookie."""

SPECULATIVE_READ_DELAY_S: Final = 0.5
"""Without an answer for this long the next replica is asked too."""

LONG_POLL_S_MAX: Final = 30.0
"""A bookie holds a tail request at most this long."""

METADATA_TIMEOUT_S: Final = 15.0
"""One metadata operation, retries over a lost connection included."""

EXPLICIT_LAC_DELAY_S: Final = 0.02
"""An idle writer tells its bookies the last add confirmed after this long without a new add."""
