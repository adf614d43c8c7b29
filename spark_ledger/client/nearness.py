"""How far bookies are from this process: on its host, in its rack, in its region, elsewhere.

A reader on a machine with a bookie then reads from that bookie's disk or memory, and not over the
network. Which rack a process is in is known if it was told, or if a bookie on its host says it.
Where all bookies run on one machine all are as near as each other.
"""

from __future__ import annotations

import functools
import ipaddress
import socket
from collections.abc import Iterable, Sequence

from spark_ledger.protocol.racks import region_of
from spark_ledger.types import BookieId, BookieInfo

_HOST, _RACK, _REGION, _ELSEWHERE = 0, 1, 2, 3


def distances(
    wanted: Iterable[BookieInfo], all_bookies: Sequence[BookieInfo], rack: str = ""
) -> dict[BookieId, int]:
    """A number for each wanted bookie that grows with its distance; empty if it is not known in
    which ``rack`` this process is, and no bookie at all is on this host."""
    racks = {info.rack for info in all_bookies if is_this_host(host_of(info.address))}
    racks = {rack} if rack else racks
    if not racks:
        return {}
    return {info.bookie_id: _distance(info, racks) for info in wanted}


def _distance(info: BookieInfo, racks: set[str]) -> int:
    if is_this_host(host_of(info.address)):
        return _HOST
    if info.rack in racks:
        return _RACK
    regions = {region_of(rack) for rack in racks} - {region_of("/")}
    return _REGION if region_of(info.rack) in regions else _ELSEWHERE


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
