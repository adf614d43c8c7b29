"""Benchmarks: ``python -m benchmarks raw|spark|all`` measures this system and its peers in one
run."""
