"""Repair: copies that a lost bookie held are made again, on others.

``plan`` and ``lost`` are pure; ``auditor`` marks ledgers that lack copies, ``worker`` and
``ledger`` make the copies and let the metadata name them. README.md has the rules R1 to R17.
"""
