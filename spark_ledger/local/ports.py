"""Free loopback ports for servers."""

from __future__ import annotations

import random
import socket
from typing import Final

HOST: Final = "127.0.0.1"

_FIRST: Final = 10_240
_LAST: Final = 32_000
"""Below the range that kernels give to outgoing connections, so that no client takes the port of
a server while it is down."""

_random: Final = random.SystemRandom()


def is_free(port: int) -> bool:
    """True if a server could listen on the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port that is free now. Another process may take it first: whoever uses it, tries again."""
    while True:
        port = _random.randint(_FIRST, _LAST)
        if is_free(port):
            return port
