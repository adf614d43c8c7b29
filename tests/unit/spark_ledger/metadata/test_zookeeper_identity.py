"""Which ZooKeeper answers, and as whom this process asks it."""

from __future__ import annotations

import asyncio

import pytest
from kazoo.security import make_digest_acl

from spark_ledger.metadata.cluster import CLUSTER_PATH, cluster_identity
from spark_ledger.metadata.codec import ClusterNode
from spark_ledger.metadata.json_nodes import encode_node
from spark_ledger.metadata.uri import ZooKeeperAddress, parse_uri
from spark_ledger.metadata.zookeeper.identity import StoreIdentity
from spark_ledger.metadata.zookeeper.session import Session
from spark_ledger.types import PlacementPolicy
from tests.unit.spark_ledger.metadata.fake_zookeeper import FakeServer

ONE, OTHER = (ClusterNode(cluster_id=name) for name in ("c1", "c2"))


def identity_of(*read: tuple[str, bytes]) -> StoreIdentity:
    identity = StoreIdentity(ZooKeeperAddress("h:1", "/root"), CLUSTER_PATH, cluster_identity)
    for path, data in read:
        identity.learn(path, data)
    return identity


def test_store_is_the_one_that_was_read_first_whatever_is_read_later() -> None:
    """Who reads another cluster's node there must not take that for the cluster from then on."""
    assert not identity_of(("ledgers", encode_node(ONE))).is_known
    identity = identity_of((CLUSTER_PATH, encode_node(ONE)), (CLUSTER_PATH, encode_node(OTHER)))
    assert identity.is_known
    identity.check(encode_node(OTHER))
    assert "its node 'cluster' is another one" in str(identity.fault)
    identity.check(None)
    assert "its node 'cluster' is missing" in str(identity.fault)
    identity.check(encode_node(ONE.with_policy(PlacementPolicy(2))))
    assert identity.fault is None, "it came back"


@pytest.mark.parametrize("user", ["", "somebody"])
def test_nodes_belong_to_the_user_of_the_uri_and_to_everybody_without_one(
    user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes of a nobody could be read by nobody who has a name."""
    server = FakeServer()
    monkeypatch.setattr("spark_ledger.metadata.zookeeper.session.KazooClient", server.client)
    who = f"{user}:secret@" if user else ""
    address = parse_uri(f"zk://{who}h:1/root")

    async def main() -> None:
        Session(
            address,
            identity_of(),
            session_timeout_s=1.0,
            operation_timeout_s=1.0,
            on_connected=lambda: None,
        )

    asyncio.run(main())
    (client,) = server.clients
    acl = [make_digest_acl("somebody", "secret", all=True)]
    assert client.settings["default_acl"] == (acl if user else None)
    assert client.settings["auth_data"] == ([("digest", "somebody:secret")] if user else None)
