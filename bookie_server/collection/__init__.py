"""Garbage collection: ledgers that were deleted in the metadata leave the bookie."""
