"""A rack of three of nine real bookies is killed while writers write (rule P21)."""

from __future__ import annotations

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
