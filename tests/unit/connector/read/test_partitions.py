"""Partitions: what Spark pickles into its tasks comes out as it went in."""

from __future__ import annotations

import pickle

from connector.read.partitions import LedgerPartition, StreamPartition
from spark_ledger.stream.model import SegmentRange
from spark_ledger.stream.plan.balance import FirstRead, FirstReads
from spark_ledger.stream.plan.partitions import Plan
from spark_ledger.types import BookieId, EntryId, LedgerId
from tests.unit.connector.fakes import make_segment


def test_partition_after_pickling_is_equal() -> None:
    ranges = tuple(SegmentRange(make_segment(n, (2, 3)), (0, 1), (1, 2), 5, 6) for n in range(3))
    bookie = BookieId("b2")
    reads = FirstReads((bookie,), (FirstRead(LedgerId(1), EntryId(0), bookie, 9),))
    partition = StreamPartition("id", Plan(ranges, 4, reads))
    assert pickle.loads(pickle.dumps(partition)) == partition
    raw = pickle.loads(pickle.dumps(LedgerPartition(LedgerId(1), EntryId(2), EntryId(3), 0)))
    assert (raw.ledger_id, raw.first_entry, raw.last_entry) == (1, 2, 3)
