"""Timeouts and bounds of metadata: sessions, retries, ledger ids, the list of bookies."""

from __future__ import annotations

from typing import Final

from spark_ledger.limits import MIB

# -- sessions and connections ----------------------------------------------------------------------

SESSION_TIMEOUT_S: Final = 10.0
"""A client silent for this long loses its ephemeral nodes. The server bounds it to 2-20 ticks."""

SESSION_TIMEOUT_S_MAX: Final = 3600.0
"""The longest session that may be asked for; servers grant a few minutes at most. On the wire it is
a 32-bit number of milliseconds, and each attempt to connect names the server once per
``ZOOKEEPER_CONNECT_ATTEMPT_S`` of it."""

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

ZOOKEEPER_PROBE_AFTER_S: Final = 2.0
"""Without a connection for so long, a fresh session is tried, again and again: a server that was
restored from a backup never takes the old one back."""

ZOOKEEPER_PROBE_TIMEOUT_S: Final = 5.0
"""For that session to be accepted."""

# -- operations ------------------------------------------------------------------------------------

METADATA_TIMEOUT_S: Final = 15.0
"""One metadata operation, retries over a lost connection included."""

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

LEDGERS_SEEN_BYTES_MAX: Final = 4 * MIB
"""What a client remembers of the ledgers that it has seen last, to notice metadata that are older:
some three thousand ledgers, and fewer of those whose bookies were replaced often. Those that it
writes or recovers come on top, and are never forgotten."""

# -- ledger ids ------------------------------------------------------------------------------------

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

RESTORED_IDS_SKIPPED: Final = 1_000_000
"""Ledger ids that are passed over after ZooKeeper was restored: running clients still hold blocks
of ids, each of up to LEDGER_ID_BLOCK_MAX, that the restored counter does not know of."""

RESTORED_IDS_MAX: Final = 2**40
"""A bookie that knows ledgers so far above all that the metadata know lies, or its disk is damaged:
nobody made as many since a backup. Its word would use up the ids, of which there are 2^63."""

LEDGER_ID_END: Final = 2**63 - 1
"""No ledger has this id or one above it: on the wire and on disks an id is a signed 64-bit
number."""

# -- registrations and who reads them --------------------------------------------------------------

REGISTRATION_MARGIN_S: Final = 10.0
"""A starting bookie waits for its predecessor's session to end: its timeout, and this much more.
The server rounds timeouts up to its ticks, and counts anew when its leader changes."""

REGISTRATION_POLL_S: Final = 2.0
"""While it waits it looks, and says so in the log, this often; a watch wakes it sooner."""

REGISTER_RETRY_DELAY_S: Final = 0.2
"""Pause between attempts of a bookie to register again after a lost session."""

OWNER_RETRY_DELAY_S: Final = 0.5
"""Pause between attempts of a client to make its owner node again after a lost session. Its ledgers
are left alone for much longer (``limits/keeper.py``)."""

NAMED_LEDGERS_KEPT: Final = 10_000
"""Ledgers of which a client remembers that a transaction has named them. One that is forgotten
costs a read, and three more parts in the transaction."""

DELETION_SIGN_PAUSE_S: Final = 2.0
"""A process that deletes ledgers gives a sign of it after so long, one for all of them: at most one
small write each two seconds, however many it deletes."""

DELETION_SIGN_CLOSE_S: Final = 1.0
"""A connection that is closed waits so long for its last sign, which may be lost."""

DIRECTORY_REFRESH_S: Final = 30.0
"""A client looks at the list of bookies again about this often: watches are hints."""

DIRECTORY_REFRESHES_OF_ALL: Final = 10
"""Within this many of these looks every registration is read once more, a share each time: free
space drifts. A client of 300 bookies reads one registration a second."""

DIRECTORY_JITTER_S: Final = 0.2
"""A client that hears of a change of the bookies waits up to this long before it reads: all clients
hear of it in the same moment, and a rack that restarts is many changes."""
