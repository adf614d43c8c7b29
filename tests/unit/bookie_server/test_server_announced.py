"""Where clients, operators and the starter of a bookie find it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import cast

import msgspec
import pytest

from bookie_server.addresses import bind
from bookie_server.config import BookieConfig, parse
from bookie_server.server import BookieServer
from bookie_server.service.grpc_server import GrpcServer
from spark_ledger.errors import ConfigurationError
from spark_ledger.metadata.codec import decode_bookie
from spark_ledger.types import BookieState
from tests.unit.bookie_server.test_server import NODE, B, Cluster, until
from tests.unit.bookie_server.test_server import cluster as cluster
from tests.unit.bookie_server.test_server_end import serving


class Bound:
    """Stands for the gRPC server: the system gave it port 5."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    def bind(self, host: str, port: int) -> int:
        self.asked.append((host, port))
        return port or 5


def config_of(host: str, port: int, advertised: str) -> BookieConfig:
    text = (
        f'metadata = "zk://h/x"\n[listen]\nhost = "{host}"\nport = {port}\n'
        f'advertised_address = "{advertised}"\n'
        '[storage]\njournal_directory = "/j"\nledger_directories = ["/l"]\n'
    )
    return parse(text, Path("/bookie.toml"))


@pytest.mark.parametrize(
    ("host", "port", "advertised", "bound", "announced"),
    [
        ("127.0.0.1", 0, "", "127.0.0.1", "127.0.0.1:5"),
        ("127.0.0.1", 9, "", "127.0.0.1", "127.0.0.1:9"),
        ("::1", 9, "", "[::1]", "[::1]:9"),
        ("0.0.0.0", 9, "host-1", "0.0.0.0", "host-1:9"),
        ("0.0.0.0", 9, "host-1:77", "0.0.0.0", "host-1:77"),
        ("::", 0, "host-1", "[::]", "host-1:5"),
        ("::", 9, "[::2]", "[::]", "[::2]:9"),
        ("::", 9, "[::2]:77", "[::]", "[::2]:77"),
    ],
)
def test_announced_address_is_the_advertised_one_with_what_it_lacks(
    host: str, port: int, advertised: str, bound: str, announced: str
) -> None:
    """Behind a NAT, or in a container, clients know neither the host nor the port that is bound."""
    stands = Bound()
    assert bind(cast("GrpcServer", stands), config_of(host, port, advertised)) == announced
    assert stands.asked == [(bound, port)]


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_address_that_no_client_can_connect_to_is_refused_before_it_is_bound(host: str) -> None:
    stands = Bound()
    with pytest.raises(ConfigurationError, match=r"listen\.advertised_address"):
        bind(cast("GrpcServer", stands), config_of(host, 9, ""))
    assert not stands.asked


@pytest.mark.parametrize("has_admin", [True, False])
def test_bookie_announces_what_is_configured_and_tells_its_starter(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], has_admin: bool
) -> None:
    admin = msgspec.structs.replace(cluster.config.admin, enabled=has_admin, port=0)
    cluster.config = msgspec.structs.replace(cluster.config, admin=admin, rack="/eu/r1")
    ready = tmp_path / "ready.json"
    made = BookieServer(cluster.config, ready_file=ready, format_if_new=True)
    cluster.server = lambda: made  # type: ignore[method-assign]

    async def main() -> None:
        async with serving(cluster):
            await until(ready.exists)
            info = decode_bookie(NODE, B, cluster.tree.get(NODE).value)
            assert (info.bookie_id, info.rack) == (B, "/eu/r1")
            assert info.address == f"127.0.0.1:{cluster.port}"
            assert info.state is BookieState.WRITABLE and info.free_bytes > 0
            host, _, port = info.admin_address.rpartition(":")
            assert (host, int(port or 0) > 0) == ("127.0.0.1" if has_admin else "", has_admin)
            told = json.loads(ready.read_text())
            assert told == {
                "bookie_id": B,
                "address": info.address,
                "admin_address": info.admin_address,
                "pid": os.getpid(),
            }
            assert not list(tmp_path.glob("ready.json.*")), "it is there as a whole, or not"
            assert f"ready {json.dumps(told)}" in capsys.readouterr().out.splitlines()

    asyncio.run(main())
