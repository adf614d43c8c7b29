"""Malformed messages over a socket to a real bookie, which keeps serving and starts again."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_ledger.local import LocalCluster
from tests.effort import SOCKET_MESSAGES, Share, in_shares
from tests.fuzz.socket_loop import LEDGER_ID, HostileClient
from tests.made_ledgers import make_ledgers

pytestmark = pytest.mark.processes

SEED = 11


@pytest.mark.parametrize("messages", in_shares(list(SOCKET_MESSAGES), Share(1, 2)))
def test_a_bookie_outlives_malformed_messages(messages: int, tmp_path: Path) -> None:
    print(f"seed {SEED}")
    with LocalCluster(bookies=1, directory=tmp_path / "cluster") as cluster:
        make_ledgers(cluster.uri, [LEDGER_ID])
        pid = cluster.bookie_pid(0)
        client = HostileClient(cluster.bookie_address(0), "bookie-0", SEED)
        for number in range(messages):
            client.send_malformed()
            if number % 25 == 0:
                client.append_honestly()
        client.check_honest_entries()
        print(dict(client.answers))
        assert client.sent == messages
        assert any("INVALID_ARGUMENT" in answer for answer in client.answers)
        assert any("BAD_REQUEST" in answer for answer in client.answers)
        assert cluster.bookie_pid(0) == pid and cluster.is_bookie_running(0)
        log = cluster.bookie_log(0).read_text()
        assert "Traceback" not in log, log[-5000:]
        assert cluster.stop_bookie(0) == 0, "what it kept can be flushed"
        cluster.start_bookie(0)
        client.reconnect(cluster.bookie_address(0))
        client.check_honest_entries()
        cluster.kill_bookie(0)
        cluster.start_bookie(0)
        client.reconnect(cluster.bookie_address(0))
        client.check_honest_entries()
        client.close()
