"""Raw ledgers through Spark: entries up to the last add confirmed, nothing disturbed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.spark.conftest import Lab


def test_open_ledger_is_read_and_followed(
    lab: Lab, until: Callable[[Callable[[], bool], str], None]
) -> None:
    with lab.client.create_ledger() as writer:
        for number in range(20):
            writer.append(f"entry {number}".encode())
        frame = lab.read(stream=None, ledgerId=writer.ledger_id, minPartitions=3)
        assert frame.rdd.getNumPartitions() == 3
        until(lambda: lab.read(stream=None, ledgerId=writer.ledger_id).count() == 20, "the LAC")
        rows = lab.read(stream=None, ledgerId=writer.ledger_id, minPartitions=3).collect()
        assert [(row.ledger_id, row.entry_id) for row in rows] == [
            (writer.ledger_id, number) for number in range(20)
        ]
        assert rows[7].payload == b"entry 7"
        follow = lab.follow(stream=None, ledgerId=writer.ledger_id, maxRowsPerTrigger=8)
        query = follow.writeStream.format("memory").queryName(f"raw_{writer.ledger_id}").start()
        table = lab.spark.table(f"raw_{writer.ledger_id}")
        until(lambda: table.count() == 20, "the entries that were there")
        writer.append(b"one more")
        until(lambda: table.count() == 21, "the entry that came")
        query.stop()
        writer.append(b"the reader has not fenced it")


def test_positions_and_available_now(lab: Lab) -> None:
    with lab.client.create_ledger() as writer:
        for number in range(10):
            writer.append(bytes([number]))
    given = {"stream": None, "ledgerId": writer.ledger_id}
    rows = lab.read(
        **given, startingPosition='{"entry": 3}', endingPosition='{"entry": 5}'
    ).collect()
    assert [row.entry_id for row in rows] == [3, 4]
    rows, progress = lab.collect(
        lab.follow(**given, startingPosition='{"entry": 4}', maxRowsPerTrigger=4)
    )
    assert sorted(row.entry_id for row in rows) == [4, 5, 6, 7, 8, 9]
    assert [one["numInputRows"] for one in progress] == [4, 2]
    with pytest.raises(Exception, match=r"entry 11 of ledger .* is not confirmed yet"):
        lab.read(**given, startingPosition='{"entry": 11}').collect()


def test_ledger_password_is_required(lab: Lab) -> None:
    with lab.client.create_ledger(password=b"secret") as writer:
        writer.append(b"x")
    given = {"stream": None, "ledgerId": writer.ledger_id}
    with pytest.raises(Exception, match="wrong password"):
        lab.read(**given).collect()
    assert lab.read(**given, **{"ledger.password": "secret"}).count() == 1


def test_empty_ledger_has_no_rows_and_missing_one_fails(lab: Lab) -> None:
    with lab.client.create_ledger() as writer:
        pass
    assert lab.read(stream=None, ledgerId=writer.ledger_id).count() == 0
    with pytest.raises(Exception, match="999999"):
        lab.read(stream=None, ledgerId=999999).collect()
