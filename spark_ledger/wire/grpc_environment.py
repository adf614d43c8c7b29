"""What gRPC reads from the environment, once, when it is first loaded. Import this before it.

Values that a user has set already are kept.
"""

from __future__ import annotations

import os

# gRPC's fork handlers restart its threads in every forked child, also one that never uses gRPC,
# and with asyncio's poller running they crash about every third child. Without them a fork is
# safe, and ``GrpcTransport`` refuses to work in the child.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# The event engine moves every message through one more thread. On two cores, without it, a single
# append takes a tenth less time, and large entries move a tenth faster. grpc 1.85; later versions
# that do not know a name say so once in the log and go on.
os.environ.setdefault(
    "GRPC_EXPERIMENTS",
    "-event_engine_client,-event_engine_listener,-event_engine_callback_cq",
)
