"""Chaos: real processes under a steady load while a seeded nemesis injects faults; then
judgement."""
