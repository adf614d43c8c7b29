"""Manifests: commits that left the metadata for entries of ledgers, as a tree of fixed fan-out."""
