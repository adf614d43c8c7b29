"""How requests reach bookies: one interface, over gRPC and in memory."""

import os

# gRPC's fork handlers restart its threads in every forked child, also one that never uses gRPC,
# and with asyncio's poller running they crash about every third child. Without them a fork is
# safe, and ``GrpcTransport`` refuses to work in the child. gRPC reads this while it is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
