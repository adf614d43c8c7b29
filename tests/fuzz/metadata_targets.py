"""Parsers of metadata nodes: ledgers, bookies, the cluster, streams and their commits."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from spark_ledger.errors import ConfigurationError, CorruptionError
from spark_ledger.keeper import nodes as keeper
from spark_ledger.metadata import codec as ledgers
from spark_ledger.metadata import json_nodes
from spark_ledger.metadata.cookies import BookieCookie, decode_cookie, encode_cookie
from spark_ledger.stream.format import codec as streams
from spark_ledger.stream.manifest import format as manifests
from spark_ledger.stream.manifest.tree import (
    ManifestRoot,
    PagePointer,
    SinkSpan,
    index_pointer,
    leaf_pointer,
)
from spark_ledger.stream.model import Commit, Head, Segment, SinkRecord, StreamConfig
from spark_ledger.stream.packs.format import decode_packs, encode_packs
from spark_ledger.stream.packs.model import Pack, Packs
from spark_ledger.types import (
    BookieId,
    BookieInfo,
    BookieStart,
    DigestType,
    DirectoryPlace,
    Dlsn,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    LedgerState,
    Quorums,
)
from tests.fuzz.target import Parse, Target, only_what_was_written

NAMED = (CorruptionError, ConfigurationError)
PATH = "a/node"


def metadata_targets() -> list[Target]:
    """All targets of this file."""
    return [*_ledger_nodes(), *_stream_nodes(), *_keeper_nodes()]


def _target(name: str, corpus: list[bytes], parse: Parse, share: int) -> Target:
    return Target(name, corpus, parse, NAMED, share, is_text=True)


def _ledger_nodes() -> list[Target]:
    def names(*numbers: int) -> tuple[BookieId, ...]:
        return tuple(BookieId(f"bookie-{number}") for number in numbers)

    open_ledger = LedgerMetadata(
        LedgerId(7), Quorums(3, 2, 2), (Fragment(EntryId(0), names(1, 2, 3)),)
    )
    closed = LedgerMetadata(
        LedgerId(7),
        Quorums(2, 2, 1),
        (Fragment(EntryId(0), names(1, 2)), Fragment(EntryId(90), names(3, 2))),
        LedgerState.CLOSED,
        EntryId(120),
        5000,
        DigestType.HMAC_SHA256,
        b"h" * 32,
        1_700_000_000_000,
        "token",
        {"application": "test", "\u00e9": "\u20ac"},
        bytes(range(16)),
    )
    bookie = BookieInfo(BookieId("bookie-1"), "host:3181", rack="/r", free_bytes=5)
    cluster = json_nodes.encode_node(ledgers.ClusterNode(cluster_id="a cluster"))
    counter = json_nodes.encode_node(ledgers.CounterNode(next_id=5, token="t"))
    place = DirectoryPlace("/j", 5, 6, 7, 8)
    cookie = BookieCookie("a cluster", "bookie-1", "/j", ("/l",), "made")
    started = msgspec.structs.replace(cookie, start=BookieStart(3, "ab"), places=(place,))
    nodes = [ledgers.encode_ledger(open_ledger), ledgers.encode_ledger(closed)]

    def decode_ledger(data: bytes) -> object:
        return ledgers.decode_ledger(PATH, LedgerId(7), data)

    return [
        _target("ledger node", nodes, decode_ledger, 40_000),
        _target("bookie node", [ledgers.encode_bookie(bookie)],
                lambda d: ledgers.decode_bookie(PATH, BookieId("bookie-1"), d), 20_000),
        _target("bookie's cookie", [encode_cookie(cookie), encode_cookie(started)],
                lambda d: decode_cookie(BookieId("bookie-1"), d), 10_000),
        _target("cluster node", [cluster],
                lambda d: json_nodes.decode_node(ledgers.ClusterNode, PATH, d), 10_000),
        _target("ledger id counter", [counter],
                lambda d: json_nodes.decode_node(ledgers.CounterNode, PATH, d), 10_000),
    ]  # fmt: skip


def _stream_nodes() -> list[Target]:
    columns: list[tuple[str, pa.DataType]]
    columns = [("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us"))]
    schema = pa.schema(columns)
    config = StreamConfig("orders", "0123", (schema, schema.append(pa.field("x", pa.date32()))))
    head = Head("0123", 4, 9, 100, 2000, 1_700_000_000_000, Dlsn(3, 1, 2), 2)
    segments = (
        Segment(5, LedgerId(1), EntryId(0), EntryId(0), 10, 300, 0, (10,)),
        Segment(6, LedgerId(2**40), EntryId(7), EntryId(9), 12, 900, 1, (3, 4, 5)),
    )
    commits = [
        streams.encode_commit(Commit(3, 1_700_000_000_000, 5, segments, "sink", 8, "run", 10, 20)),
        streams.encode_commit(Commit(3, 1, 5, (), "sink", -1)),
        streams.encode_commit(Commit(3, 1, 5, (segments[1].with_version(4),), "sink", -1)),
        streams.encode_commit(
            Commit(3, 1, 5, (), "sink", 2**60), streams.SegmentListPointer(LedgerId(6), 2)
        ),
    ]
    sink = SinkRecord("sink", 8, 3, "run")
    return [
        _target("stream configuration", [streams.encode_config(config)],
                lambda d: streams.decode_config(d, PATH), 10_000),
        _target("stream head", [streams.encode_head(head)],
                lambda d: streams.decode_head(d, PATH), 20_000),
        _target("commit", commits, lambda d: streams.decode_commit(d, 3, PATH), 20_000),
        _target("sink record", [streams.encode_sink(sink)],
                lambda d: streams.decode_sink(d, PATH), 10_000),
        _target("segment list", [streams.encode_segment_list(segments)],
                lambda d: streams.decode_segment_list(d, 5, PATH), 20_000),
        *_manifests(commits),
    ]  # fmt: skip


def _manifests(commits: list[bytes]) -> list[Target]:
    leaves = [manifests.encode_leaf("0123", 0, commits * n) for n in (1, 40)]
    found = [Commit(n, 5 + n, 2 * n, (), "sink", n, "", n, n) for n in range(4)]
    pointers = [leaf_pointer(7, 0, found[:2]), leaf_pointer(7, 1, found[2:])]
    many = PagePointer(8, 3, 9, 9, 99, 99, None)
    indexes = [manifests.encode_index("0123", 1, 0, pointers, each) for each in ([], [LedgerId(3)])]
    above = index_pointer(9, 2, pointers)
    assert above.sinks == (SinkSpan("sink", 0, 3),)
    high = ManifestRoot("0123", ((many,), (above,)), 2, 2)
    roots = [ManifestRoot("0123", (), 100, 100), high, high._replace(freed=2)]
    pack = Pack(0, 4, 0, 8, LedgerId(7), 1, 8, 100)

    def leaf(data: bytes) -> object:
        return manifests.decode_leaf(data, "0123", 0, PATH)

    def index(data: bytes) -> object:
        return manifests.decode_index(data, "0123", 1, 0, PATH)

    return [
        Target("manifest of commits", leaves, leaf, NAMED, 20_000,
               only_what_was_written(leaves, leaf)),
        Target("manifest of manifests", indexes, index, NAMED, 10_000,
               only_what_was_written(indexes, index)),
        _target("root of manifests", [manifests.encode_root(root) for root in roots],
                lambda d: manifests.decode_root(d, PATH), 20_000),
        _target("packs of a stream", [encode_packs(Packs()), encode_packs(Packs().with_pack(pack))],
                lambda d: decode_packs(d, PATH), 20_000),
    ]  # fmt: skip


def _keeper_nodes() -> list[Target]:
    state = keeper.KeeperState(host="h", pid=7, worked_s=8.5, gone_s={"ab": 30.0})
    found = keeper.Unlisted(ledgers=3, user_bytes=70, deleted=2)
    audit = keeper.AuditState(begun_s=8.5, next_page=4, so_far=found, last=found, unread=("s",))
    page = keeper.AuditPage(looks=((8.5, (3, 4)), (80.0, (9,))))
    looks = ((8.5, 3), (80.0, 9))
    dropped = keeper.DroppedNode(name="orders", looks=looks, merged=looks, packed=looks[:1])
    packed = keeper.PackedNode(packs=3, commits=700, copied_bytes=9_000_000)
    return [
        _target("packs of the keeper", [json_nodes.encode_node(packed)],
                lambda d: json_nodes.decode_node(keeper.PackedNode, PATH, d), 10_000),
        _target("state of the keeper", [json_nodes.encode_node(state)],
                lambda d: json_nodes.decode_node(keeper.KeeperState, PATH, d), 10_000),
        _target("dropped rows", [json_nodes.encode_node(dropped)],
                lambda d: json_nodes.decode_node(keeper.DroppedNode, PATH, d), 10_000),
        _target("audit", [json_nodes.encode_node(audit)],
                lambda d: json_nodes.decode_node(keeper.AuditState, PATH, d), 10_000),
        _target("page of an audit", [json_nodes.encode_node(page)],
                lambda d: json_nodes.decode_node(keeper.AuditPage, PATH, d), 10_000),
    ]  # fmt: skip
