"""The limit that the machine sets to appends: gRPC, a file and a sync, without a ledger."""
