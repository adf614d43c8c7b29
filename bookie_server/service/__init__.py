"""The bookie's network: gRPC, metrics and an admin port. Knows no disk format."""
