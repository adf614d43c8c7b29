"""The metadata URI: what is accepted, what is refused, and that no password is shown."""

from __future__ import annotations

import pytest

from spark_ledger.errors import ConfigurationError
from spark_ledger.metadata.uri import masked_uri, parse_uri
from spark_ledger.metadata.zookeeper.session import hosts_for_kazoo


@pytest.mark.parametrize(
    ("uri", "hosts", "root"),
    [
        ("zk://localhost:2181/ledgers", "localhost:2181", "/ledgers"),
        ("zk://a/ledgers/", "a:2181", "/ledgers"),
        (" zk://a:1,b,c:3/x/y ", "a:1,b:2181,c:3", "/x/y"),
        ("zk://[::1]:2182,[fe80::1]/x", "[::1]:2182,[fe80::1]:2181", "/x"),
        ("zk://a:1/team:one/x", "a:1", "/team:one/x"),
    ],
)
def test_parse_uri_accepts(uri: str, hosts: str, root: str) -> None:
    address = parse_uri(uri)
    assert (address.hosts, address.root, address.user) == (hosts, root, "")
    assert parse_uri(str(address)) == address


def test_credentials_are_decoded_and_never_shown() -> None:
    address = parse_uri("zk://us%40er:p%3Aa%2Fss@a:1/x")
    assert (address.user, address.password) == ("us@er", "p:a/ss")
    for shown in (str(address), repr(address)):
        assert "p:a/ss" not in shown and "p%3A" not in shown
    assert str(address) == "zk://us@er:***@a:1/x"


@pytest.mark.parametrize("password", ["p:a:ss", ":", "p@ss", "p@:s@s:"])
def test_password_may_have_colons_and_ats_and_a_user_none(password: str) -> None:
    """As somebody types it who does not know what has to be encoded."""
    address = parse_uri(f"zk://user:{password}@a:1,b/x")
    assert (address.user, address.password, address.hosts) == ("user", password, "a:1,b:2181")
    assert str(address) == "zk://user:***@a:1,b:2181/x"


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("", "zk://"),
        ("localhost:2181/ledgers", "zk://"),
        ("http://a/x", "zk://"),
        ("zk://a:2181", "root path"),
        ("zk://a:2181/", "root path"),
        ("zk://a/x//y", "root path"),
        ("zk://a/../y", "root path"),
        ("zk://a/x/y\x07", "root path"),
        ("zk:///x", "not a host"),
        ("zk://a,,b/x", "not a host"),
        ("zk://a:/x", "port"),
        ("zk://a:0/x", "port"),
        ("zk://a:65536/x", "port"),
        ("zk://a:21a/x", "port"),
        (f"zk://a:{'9' * 5000}/x", "port"),
        ("zk://::1:2181/x", "brackets"),
        ("zk://a b/x", "not a host"),
        ("zk://ab]/x", "not a host"),
        ("zk://[ab/x", "not a host"),
        ("zk://user@a/x", "user:password@"),
        ("zk://:secret@a/x", "user:password@"),
        ("zk://secret:@a/x", "user:password@"),
        ("zk:/user:secret@a:1/x", "zk://"),
        ("zk//user:secret@a:1/x", "zk://"),
        ("user:secret@a:1/x", "zk://"),
        ("zk:user:secret@a/x", "zk://"),
        ("ZK://user:secret@a/x", "zk://"),
        ("zk:/user:secret/x", "zk://"),
        ("zk://user:secret", "root path"),
        ("zk://user:secret/x", "port"),
        ("zk://user:1secret/x", "port"),
        ("zk://user:se/secret@a/x", "written %2F"),
        ("zk://user:a@secret", "root path"),
        ("zk://user:a@b@secret:secret/x", "port"),
        ("zk://user:secret%40a:1/x", "port|host"),
        ("zk://a:1,user:secret,b/x", "port"),
        ("zk://user:secret@/x", "not a host"),
        ("zk://user:a/secret@b/../x", "port|root"),
        ("zk://user:2024/secret@a:1/x", "written %2F"),
        ("zk://user:p@ss/secret@a:1/x", "written %2F"),
        ("zk://a:1/user:secret@x", "written %2F"),
        ("zk://a:1/secret@b", "written %2F"),
        ("zk://a/x?auth=u:secret", "written %2F"),
        ("zk://a:1/x?password=secret", "written %2F"),
        ("zk://a?secret/x", "not a host"),
    ],
)
def test_parse_uri_refuses_and_shows_the_form(uri: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason) as caught:
        parse_uri(uri)
    assert "zk://host1:2181,host2:2181/ledgers" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("uri", [None, 5, b"zk://a/b"])
def test_parse_uri_of_other_types_is_refused(uri: object) -> None:
    with pytest.raises(ConfigurationError, match="it is not text"):
        parse_uri(uri)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hosts", "session_timeout_s", "times"),
    [("a:1", 10.0, 4), ("a:1", 1.0, 1), ("a:1,b:2", 10.0, 2), ("a:1,b:2,c:3,d:4,e:5", 10.0, 1)],
)
def test_hosts_for_kazoo_repeats_hosts_for_long_sessions(
    hosts: str, session_timeout_s: float, times: int
) -> None:
    assert hosts_for_kazoo(hosts, session_timeout_s) == ",".join([hosts] * times)


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("zk://a:1,b:2181/x", "zk://a:1,b:2181/x"),
        (" zk://user:secret/x ", "zk://user:***/x"),
        ("zk://user:p@a:1/x", "zk://***"),
        ("https://user:p@a:1/x", "https://***"),
        ("user:p@a:1/x", "***"),
        ("a:2181/x", "a:2181/x"),
        ("a:1,user:secret,b:2/x", "a:1,user:***,b:2/x"),
        ("zk://a:secret,b:2181/x", "zk://a:***,b:2181/x"),
        ("zk:/a:1/x", "zk:/a:1/x"),
        ("a:secret/x", "a:***/x"),
        ("zk://a:1/x?auth=u:secret", "zk://a:1/x?***"),
    ],
)
def test_masked_uri_shows_all_that_is_no_secret(uri: str, shown: str) -> None:
    """Whoever mistyped it must see what."""
    assert masked_uri(uri) == shown
