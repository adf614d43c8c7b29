"""How long kazoo waits for a server that has accepted its connection and says nothing."""

from __future__ import annotations

CONNECT_ATTEMPT_S = 2.5
"""About how long a server may take to accept a session, before it is tried again. One that is just
starting swallows the first message, and would cost the whole session timeout otherwise."""


def hosts_for_kazoo(hosts: str, session_timeout_s: float) -> str:
    """The hosts, several times each: kazoo waits for an answer to its first message for the
    session timeout divided by their number, and that cannot be set in another way."""
    names = hosts.split(",")
    return ",".join(names * max(1, round(session_timeout_s / CONNECT_ATTEMPT_S / len(names))))
