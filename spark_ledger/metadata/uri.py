"""The metadata URI, ``zk://host1:2181,host2:2181/ledgers``: parsed, and shown without secrets."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from spark_ledger.errors import ConfigurationError

URI_FORM: Final = "zk://host1:2181,host2:2181/ledgers"
DEFAULT_PORT: Final = 2181

_SCHEME: Final = re.compile(r"(zk|https?|zookeeper):/*")
_NO_PORT: Final = re.compile(r":(?![0-9]{1,5}(?:[,/]|$))[^,/]*")
"""A colon without a port behind it, and what follows up to the next host or the root."""
_NOT_IN_A_ROOT: Final = "@?"
"""With a / in a password, what follows that is taken for the root, up to an @; and a ? begins what
other kinds of URI have there. A : is no sign of either: clusters have it in their names."""


@dataclass(frozen=True, slots=True)
class ZooKeeperAddress:
    """Where the metadata live. ``str()`` is safe to print: it has no password."""

    hosts: str
    """Comma-separated ``host:port``, as kazoo takes them."""

    root: str
    """Absolute path of the root node, without a trailing slash."""

    user: str = ""
    password: str = field(default="", repr=False)

    def absolute(self, path: str) -> str:
        """A path of the store as the server knows it."""
        return f"{self.root}/{path}"

    def __str__(self) -> str:
        who = f"{self.user}:***@" if self.user else ""
        return f"zk://{who}{self.hosts}{self.root}"


def parse_uri(uri: str) -> ZooKeeperAddress:
    """Parse a metadata URI. User and password may be percent-encoded.

    Raises ConfigurationError if it is malformed; the message says the form, and never repeats what
    may be a password.
    """
    if not isinstance(uri, str):
        raise _error(type(uri).__name__, "it is not text")
    scheme, separator, rest = uri.strip().partition("://")
    authority, _, root = rest.partition("/")
    credentials, at, hosts = authority.rpartition("@")
    shown = masked_uri(uri)
    if scheme != "zk" or not separator:
        raise _error(shown, "it does not start with zk://")
    names = root.strip("/").split("/")
    if any(name in {"", ".", ".."} or not name.isprintable() for name in names):
        raise _error(shown, "it needs a root path behind the hosts, such as /ledgers")
    if any(sign in root for sign in _NOT_IN_A_ROOT):
        reason = "a root path has no @ or ?, and a / in a user's name or password is written %2F"
        raise _error(shown, reason)
    user, colon, password = credentials.partition(":")
    if at and not (user and colon and password):
        raise _error(shown, "credentials have the form user:password@")
    return ZooKeeperAddress(
        hosts=",".join(_host(host, uri) for host in hosts.split(",")),
        root="/" + "/".join(names),
        user=unquote(user),
        password=unquote(password),
    )


def masked_uri(uri: str) -> str:
    """A URI, well-formed or not, without anything that may be a user's name or password.

    What stands before a ``@`` may be a password, and so may what follows it, when the password
    holds a ``@`` itself. Without one, what follows a colon is a password unless it is a port; and
    what follows a ``?`` may have one in it.
    """
    text = uri.strip()
    scheme = _SCHEME.match(text)
    start = scheme.end() if scheme else 0
    return text[:start] + ("***" if "@" in text else _masked(text[start:]))


def _masked(text: str) -> str:
    shown, question, _ = text.partition("?")
    return _NO_PORT.sub(":***", f"{shown}?***" if question else shown)


def _host(text: str, uri: str) -> str:
    text = text.strip()
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):  # no port; an IPv6 address stands in brackets
        host, port = text, str(DEFAULT_PORT)
    named = "a host" if "@" in uri else repr(_masked(text))
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not bare or any(character in " /?#[]" for character in bare):
        raise _error(masked_uri(uri), f"{named} is not a host")
    if ":" in bare and bare == host:
        raise _error(masked_uri(uri), f"{named}: an IPv6 address stands in brackets")
    if not (re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) < 65536):
        raise _error(masked_uri(uri), f"{named}: the port is not a number from 1 to 65535")
    return f"{host}:{int(port)}"


def _error(shown: str, reason: str) -> ConfigurationError:
    return ConfigurationError(f"metadata URI {shown!r}: {reason} (the form is {URI_FORM})")
