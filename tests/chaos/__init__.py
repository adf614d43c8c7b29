"""Chaos: real processes under a steady load while a seeded nemesis breaks things; then judgment."""
