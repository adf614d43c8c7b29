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

READ_CHUNKS_AHEAD_MAX: Final = 4
"""Chunks (of about 1 MiB) that are read before the consumer has taken the first."""

# -- time ------------------------------------------------------------------------------------------

ADD_TIMEOUT_S: Final = 5.0
"""A bookie that acknowledges nothing for this long while adds wait is failed (not slow: silent)."""

SLOW_BOOKIE_GRACE_S: Final = 1.0
"""A bookie that is silent this long *and* over the byte bound is failed, if the others suffice."""

REPLACEMENT_RETRY_S: Final = 1.0
"""A failed bookie that nobody could replace is looked at again after this long."""

WRITER_CLOSE_GRACE_S: Final = 0.25
"""A closing writer lets the slowest replica catch up for so long, to leave WQ copies behind."""

MACHINE_TICK_S: Final = 0.02
"""Between two looks of a busy machine at the clock: well below every timeout that it checks."""

TAIL_PAUSE_S: Final = 0.05
"""Between rounds of long polls that came to nothing at once, as when bookies are down."""

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
