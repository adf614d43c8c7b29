"""Where claims about replication are made, by title and author; the setting they name most."""

from __future__ import annotations

from typing import Final

BK: Final = "bookkeeper-3-3-2"
BOOKKEEPER: Final = "The BookKeeper protocol (Apache BookKeeper's documentation)"
DURABILITY: Final = "Durability with BookKeeper (Junqueira, Kelly, Reed)"
INSIGHTS: Final = (
    "Apache BookKeeper Insights Part 1: External Consensus and Dynamic Membership (Vanlightly)"
)
RAFT: Final = "In Search of an Understandable Consensus Algorithm (Ongaro, Ousterhout)"
KAFKA: Final = "Design: Replication (Apache Kafka's documentation)"
DISSERTATION: Final = "Consensus: Bridging Theory and Practice (Ongaro)"
DLEDGER: Final = "DLedgerEntryPusher (source of openmessaging/dledger)"
CONTROLLER: Final = "RIP-44: Support DLedger Controller (Apache RocketMQ)"
ROCKETMQ: Final = "Deployment: Master and Slave (Apache RocketMQ's documentation)"
