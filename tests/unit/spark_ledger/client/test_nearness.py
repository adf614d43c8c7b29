"""How far bookies are: the own host, its rack, its region, elsewhere."""

from __future__ import annotations

import socket
from unittest.mock import patch

import pytest

from spark_ledger.client.nearness import distances, host_of, is_this_host
from spark_ledger.config import ClientConfig
from spark_ledger.errors import ConfigurationError
from spark_ledger.types import BookieId, BookieInfo


def info(name: str, address: str, rack: str = "/r") -> BookieInfo:
    return BookieInfo(BookieId(name), address, rack=rack)


@pytest.mark.parametrize(
    ("address", "host"),
    [("10.0.0.1:3181", "10.0.0.1"), ("[::1]:3181", "::1"), ("node7.site:1", "node7.site")],
)
def test_host_of_address(address: str, host: str) -> None:
    assert host_of(address) == host


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("127.0.0.1", True),
        ("203.0.113.77", False),  # reserved for documents: no machine has it
        ("2001:db8::77", False),
        ("node7", True),
        ("node7.site", True),
        ("node70", False),
        ("", False),
    ],
)
def test_is_this_host(host: str, is_own: bool) -> None:
    is_this_host.cache_clear()
    with patch.object(socket, "gethostname", return_value="node7.site"):
        assert is_this_host(host) is is_own
    is_this_host.cache_clear()


def test_bookie_on_this_host_is_nearest_and_its_rack_comes_next() -> None:
    own = info("own", "127.0.0.1:1", "/a")
    near, far = info("near", "203.0.113.1:1", "/a"), info("far", "203.0.113.2:1", "/b")
    assert distances([far, near, own], [own, near, far]) == {"own": 0, "near": 1, "far": 3}
    assert distances([far, near], [own, near, far]) == {"near": 1, "far": 3}
    assert distances([far, near], [near, far]) == {}, "nothing is known of where this process is"


def test_region_comes_after_the_rack_and_before_all_else() -> None:
    bookies = [
        info("a", "203.0.113.1:1", "/eu/r1"),
        info("b", "203.0.113.2:1", "/eu/r2"),
        info("c", "203.0.113.3:1", "/us/r1"),
        info("d", "203.0.113.4:1", "/r9"),
    ]
    assert distances(bookies, bookies) == {}
    assert distances(bookies, bookies, "/eu/r1") == {"a": 1, "b": 2, "c": 3, "d": 3}
    assert set(distances(bookies, bookies, "/r1").values()) == {3}, "in no region"


@pytest.mark.parametrize("rack", ["eu", 5, None])
def test_rack_of_a_client_is_a_path(rack: object) -> None:
    with pytest.raises(ConfigurationError, match="/eu/r1"):
        ClientConfig(rack=rack)  # type: ignore[arg-type]
    assert ClientConfig(rack="/eu/r1").rack == "/eu/r1"
