"""The bookie's network: gRPC, metrics and an admin port. Knows no disk format."""

import spark_ledger.wire.grpc_environment  # noqa: F401 - before gRPC is loaded
