"""The keeper: one process of a cluster that ends what dead writers have left behind.

It recovers open ledgers whose owner is gone, deletes ledgers that nothing ever named, and finishes
deletions that were cut off. ``decisions`` and ``gone`` are pure; ``keeper`` does what they decide,
at a bounded rate, as the one that ``election`` chose. README.md has the rules K1 to K11.
"""
