"""How requests reach bookies: one interface, over gRPC and in memory."""

import spark_ledger.wire.grpc_environment  # noqa: F401 - before gRPC is loaded
