"""How far bookies are from this process: on its own host, in the rack of its host, elsewhere.

A reader on a machine with a bookie then reads from that bookie's disk or memory, and not over the
network. Which rack a process is in is known only if a bookie on its host says it. Where all bookies
run on one machine all are as near as each other.
"""

from __future__ import annotations

import functools
import ipaddress
import socket
from collections.abc import Iterable, Sequence

from spark_ledger.types import BookieId, BookieInfo

_HOST, _RACK, _ELSEWHERE = 0, 1, 2


def distances(
    wanted: Iterable[BookieInfo], all_bookies: Sequence[BookieInfo]
) -> dict[BookieId, int]:
    """A number for each wanted bookie that grows with its distance; empty if no bookie at all is on
    this host."""
    racks = {info.rack for info in all_bookies if is_this_host(host_of(info.address))}
    if not racks:
        return {}
    return {info.bookie_id: _distance(info, racks) for info in wanted}


def _distance(info: BookieInfo, racks: set[str]) -> int:
    if is_this_host(host_of(info.address)):
        return _HOST
    return _RACK if info.rack in racks else _ELSEWHERE


def host_of(address: str) -> str:
    """The host of ``host:port``, without the brackets of an IPv6 address."""
    return address.rpartition(":")[0].strip("[]")


@functools.lru_cache(maxsize=1024)
def is_this_host(host: str) -> bool:
    """Whether a name or an address is one of this machine. Asks no name server: a name counts if it
    is the machine's own, with or without its domain."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return bool(host) and host.partition(".")[0] == socket.gethostname().partition(".")[0]
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))  # only an address of this machine can be bound
    except OSError:
        return False
    return True
