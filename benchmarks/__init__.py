"""Benchmarks: ``python -m benchmarks raw|spark|all``; one run measures ours and the peers."""
