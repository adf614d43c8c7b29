"""A rack of three of nine real bookies is killed while writers write (rule P21)."""

from __future__ import annotations

from typing import Any

import pytest

import spark_ledger
from spark_ledger.local import LocalCluster
from tests.integration.test_cli import Shell
from tests.integration.test_repair import eventually

pytestmark = [pytest.mark.processes, pytest.mark.proof]


def test_killed_rack_takes_no_acknowledged_entry_and_stops_no_writer() -> None:
    with LocalCluster(bookies=9, racks=3, keeper=True, lost_bookie_delay_s=3.0) as cluster:
        shell = Shell(cluster.uri)
        assert shell("cluster", "placement", "--min-racks", "2", "--json").json()["min_racks"] == 2
        racks = {row["bookie_id"]: row["rack"] for row in shell("bookies", "list", "--json").json()}
        assert sorted(racks.values()) == sorted(["/rack-0", "/rack-1", "/rack-2"] * 3)
        with spark_ledger.connect(cluster.uri) as client:

            def spans(ledger_id: int) -> int:
                fragments = client.ledger_metadata(ledger_id).fragments
                return min(len({racks[b] for b in fragment.bookies}) for fragment in fragments)

            writers = [client.create_ledger() for _ in range(6)]
            for number in range(50):
                for writer in writers:
                    writer.append(b"%d" % number)
            assert all(spans(writer.ledger_id) == 3 for writer in writers)
            for index in (0, 3, 6):
                cluster.kill_bookie(index)
            for number in range(50, 100):
                for writer in writers:
                    writer.append(b"%d" % number)
            for writer in writers:
                writer.close()
                with client.open_ledger(writer.ledger_id) as reader:
                    found = [entry.payload for entry in reader.read(0, 99)]
                assert found == [b"%d" % number for number in range(100)]
            burnt = {name for name, rack in racks.items() if rack == "/rack-0"}

            def names_burnt(ledger_id: int) -> bool:
                fragments = client.ledger_metadata(ledger_id).fragments
                return any(burnt & set(fragment.bookies) for fragment in fragments)

            eventually(lambda: not any(names_burnt(writer.ledger_id) for writer in writers))
            assert all(spans(writer.ledger_id) == 2 for writer in writers)


def test_rack_killed_under_the_durability_promise_costs_only_copies() -> None:
    """No rack holds AQ copies of an entry, so none is the end of an acknowledged one. What the
    status says is true before, between and after; the rack that comes back is used again."""
    with LocalCluster(bookies=9, racks=3, keeper=True, lost_bookie_delay_s=3.0) as cluster:
        shell = Shell(cluster.uri)
        wanted = ("--min-racks", "2", "--min-racks-for-durability", "2")
        shell.ok("cluster", "placement", *wanted)
        racks = {row["bookie_id"]: row["rack"] for row in shell("bookies", "list", "--json").json()}

        def status() -> tuple[int, dict[str, Any]]:
            told = shell("cluster", "status", "--json")
            return told.status, told.json()

        with spark_ledger.connect(cluster.uri) as client:
            writers = [client.create_ledger() for _ in range(4)]
            closed = [client.create_ledger() for _ in range(10)]
            for writer in (*writers, *closed):
                for number in range(20):
                    writer.append(b"%d" % number)
            for each in closed:
                each.close()
                for fragment in client.ledger_metadata(each.ledger_id).fragments:
                    assert len({racks[b] for b in fragment.bookies}) == 3
            code, told = status()
            assert (code, told["misplaced"]["entries"]) == (0, 0), told
            burnt = [index for index in range(9) if racks[f"bookie-{index}"] == "/rack-0"]
            for index in burnt:
                cluster.kill_bookie(index)
            code, told = status()
            assert code == 1 and told["zones"]["below_ack_quorum"]["entries"] == 0, told
            assert told["zones"]["unreadable"]["entries"] == 0, told
            assert told["lacking_entries"] + told["misplaced"]["entries"] > 0, told
            for writer in writers:
                for number in range(20, 40):
                    writer.append(b"%d" % number)
            for writer in writers:
                writer.close()
            for each, count in [*((w, 40) for w in writers), *((w, 20) for w in closed)]:
                with client.open_ledger(each.ledger_id) as reader:
                    found = [entry.payload for entry in reader.read(0, count - 1)]
                assert found == [b"%d" % number for number in range(count)]
            # Two racks cannot hold three copies with fewer than AQ in each: that is said.
            eventually(lambda: status()[1]["lacking_entries"] == 0)
            code, told = status()
            assert code == 1 and told["misplaced"]["ledgers"] == 14, told
            for index in burnt:
                cluster.start_bookie(index)
            eventually(lambda: status()[0] == 0)
            for each in (*writers, *closed):
                for fragment in client.ledger_metadata(each.ledger_id).fragments:
                    assert len({racks[b] for b in fragment.bookies}) == 3
