"""Node formats: golden bytes, round trips, and that damage is named."""

from __future__ import annotations

import msgspec
import pytest

from spark_ledger.errors import ConfigurationError, CorruptionError
from spark_ledger.limits.entries import (
    FRAGMENTS_MAX,
    LEDGER_METADATA_BYTES_MAX,
    LEDGER_METADATA_ENDED_BYTES_MAX,
    LEDGER_METADATA_NEW_BYTES_MAX,
)
from spark_ledger.metadata.cluster import cluster_identity
from spark_ledger.metadata.codec import (
    BookieNode,
    ClusterNode,
    CounterNode,
    OwnerNode,
    decode_bookie,
    decode_ledger,
    encode_bookie,
    encode_ledger,
)
from spark_ledger.metadata.json_nodes import decode_node, encode_node
from spark_ledger.types import (
    BookieId,
    BookieInfo,
    BookieState,
    DigestType,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    LedgerState,
    PlacementPolicy,
    Quorums,
)

PATH = "ledgers/00/0000/L0007"
LEDGER = LedgerMetadata(
    ledger_id=LedgerId(7),
    quorums=Quorums(2, 2, 1),
    fragments=(
        Fragment(EntryId(0), (BookieId("a"), BookieId("b"))),
        Fragment(EntryId(5), (BookieId("c"), BookieId("b"))),
    ),
    state=LedgerState.CLOSED,
    last_entry_id=EntryId(9),
    length=1234,
    digest_type=DigestType.HMAC_SHA256,
    access_key_hash=b"\x00\xff",
    creation_time_ms=1_700_000_000_000,
    creation_token="t",
    custom_metadata={"app": "x"},
)
GOLDEN = (
    b'{"format_version":1,"ledger_id":7,"ensemble_size":2,"write_quorum":2,"ack_quorum":1,'
    b'"state":"closed","fragments":[[0,["a","b"]],[5,["c","b"]]],"last_entry_id":9,'
    b'"length":1234,"digest_type":"hmac-sha256","access_key_hash":"AP8=",'
    b'"creation_time_ms":1700000000000,"creation_token":"t","custom_metadata":{"app":"x"}}'
)


def test_ledger_golden_bytes() -> None:
    assert encode_ledger(LEDGER) == GOLDEN
    assert decode_ledger(PATH, LedgerId(7), GOLDEN) == LEDGER


MADE_NOW = LEDGER.with_changes(incarnation=bytes(range(16)))
GOLDEN_NOW = (
    GOLDEN.replace(b'"format_version":1', b'"format_version":2')[:-1]
    + b',"incarnation":"AAECAwQFBgcICQoLDA0ODw=="}'
)


def test_ledger_with_an_incarnation_has_a_later_format() -> None:
    assert encode_ledger(MADE_NOW) == GOLDEN_NOW
    assert decode_ledger(PATH, LedgerId(7), GOLDEN_NOW) == MADE_NOW


@pytest.mark.parametrize(
    "data",
    [
        GOLDEN_NOW.replace(b'"format_version":2', b'"format_version":1'),
        GOLDEN.replace(b'"format_version":1', b'"format_version":2'),
        GOLDEN_NOW.replace(b"AAECAwQFBgcICQoLDA0ODw==", b""),
        GOLDEN_NOW.replace(b"AAECAwQFBgcICQoLDA0ODw==", b"AAECAwQFBgcICQoLDA0O"),
    ],
)
def test_ledger_with_a_wrong_incarnation_is_damaged(data: bytes) -> None:
    with pytest.raises(CorruptionError, match="incarnation"):
        decode_ledger(PATH, LedgerId(7), data)


OWNED = MADE_NOW.with_changes(owner="ab12")
GOLDEN_OWNED = (
    GOLDEN_NOW.replace(b'"format_version":2', b'"format_version":3')[:-1] + b',"owner":"ab12"}'
)


def test_ledger_with_an_owner_has_a_later_format() -> None:
    assert encode_ledger(OWNED) == GOLDEN_OWNED
    assert decode_ledger(PATH, LedgerId(7), GOLDEN_OWNED) == OWNED


@pytest.mark.parametrize(
    "data",
    [
        GOLDEN_OWNED.replace(b'"format_version":3', b'"format_version":2'),
        GOLDEN_NOW.replace(b'"format_version":2', b'"format_version":3'),
        GOLDEN_OWNED.replace(b"ab12", b""),
    ],
)
def test_ledger_with_a_wrong_owner_is_damaged(data: bytes) -> None:
    with pytest.raises(CorruptionError, match="owner"):
        decode_ledger(PATH, LedgerId(7), data)


def test_owner_golden_bytes() -> None:
    owner = OwnerNode(owner="ab12", host="h", pid=5)
    assert encode_node(owner) == b'{"format_version":1,"owner":"ab12","host":"h","pid":5}'
    assert decode_node(OwnerNode, "p", encode_node(owner)) == owner


def change(**fields: object) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(GOLDEN) | fields)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "damaged"),
        (b"\xff\xfe", "damaged"),
        (b"[]", "damaged"),
        (GOLDEN[:-1], "damaged"),
        (GOLDEN.replace(b'"app"', b'"\xff"'), "damaged.*utf-8"),
        (b'{"format_version":1,"x":' + b"[" * 100_000, "damaged.*recursion"),
        (change(extra=1), "unknown field `extra`"),
        (change(format_version=0), "format version 0"),
        (change(format_version="1"), "format_version"),
        (change(ledger_id=8), "it holds ledger 8"),
        (change(state="gone"), "state"),
        (change(fragments=[]), "fragments"),
        (change(fragments=[[1, ["a", "b"]]]), "fragments start at"),
        (change(fragments=[[0, ["a", "b"]], [0, ["a", "b"]]]), "fragments start at"),
        (change(fragments=[[0, ["a"]]]), "fragment 0 needs 2 distinct"),
        (change(fragments=[[0, ["a", "a"]]]), "fragment 0 needs 2 distinct"),
        (change(write_quorum=3), "needs ensemble_size"),
        (change(last_entry_id=-2), "last_entry_id"),
        (change(access_key_hash="%%"), "access_key_hash"),
        (change(custom_metadata={"a": 1}), "custom_metadata"),
    ],
)
def test_damaged_ledger_is_named(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptionError, match=reason) as caught:
        decode_ledger(PATH, LedgerId(7), data)
    assert PATH in str(caught.value)


def test_missing_field_is_damage() -> None:
    fields = msgspec.json.decode(GOLDEN)
    for name in fields:
        data = msgspec.json.encode({key: value for key, value in fields.items() if key != name})
        with pytest.raises(CorruptionError, match=name):
            decode_ledger(PATH, LedgerId(7), data)


def test_later_format_asks_for_an_upgrade() -> None:
    with pytest.raises(ConfigurationError, match="upgrade") as caught:
        decode_ledger(PATH, LedgerId(7), change(format_version=4, extra=1))
    assert PATH in str(caught.value)


def filled(metadata: LedgerMetadata, size: int) -> LedgerMetadata:
    """The same with custom metadata that make its node so large."""
    room = size - len(encode_ledger(metadata.with_changes(custom_metadata={"k": ""})))
    return metadata.with_changes(custom_metadata={"k": "v" * room})


OPEN = LEDGER.with_changes(state=LedgerState.OPEN, last_entry_id=EntryId(-1), length=0)


@pytest.mark.parametrize(
    ("ledger", "most"),
    [
        (OPEN, LEDGER_METADATA_BYTES_MAX),
        (OPEN.with_changes(state=LedgerState.IN_RECOVERY), LEDGER_METADATA_ENDED_BYTES_MAX),
        (LEDGER, LEDGER_METADATA_ENDED_BYTES_MAX),
    ],
)
def test_size_limit_is_exact_and_says_what_is_large(ledger: LedgerMetadata, most: int) -> None:
    fits = filled(ledger, most)
    assert len(encode_ledger(fits)) == most
    too_large = {"k": fits.custom_metadata["k"] + "v"}
    characters = 1 + len(too_large["k"])
    with pytest.raises(
        ConfigurationError, match=rf"ledger 7: .* {characters} characters of custom.* {most} bytes"
    ):
        encode_ledger(ledger.with_changes(custom_metadata=too_large))


def test_new_ledger_leaves_room_for_the_fragments_to_come() -> None:
    most = LEDGER_METADATA_NEW_BYTES_MAX
    fits = filled(OPEN, most)
    assert encode_ledger(fits, is_new=True) == encode_ledger(fits)
    with pytest.raises(ConfigurationError, match=f"at most {most} bytes"):
        encode_ledger(filled(OPEN, most + 1), is_new=True)


def test_ledger_whose_node_is_full_can_be_recovered_and_closed_by_other_bookies() -> None:
    """The room behind the bound of an open ledger is for what ends it."""
    full = filled(OPEN, LEDGER_METADATA_BYTES_MAX)
    encode_ledger(full.with_changes(state=LedgerState.IN_RECOVERY))
    others = Fragment(EntryId(2**50), (BookieId("x" * 250), BookieId("y" * 250)))
    ended = full.with_changes(
        state=LedgerState.CLOSED,
        fragments=(*full.fragments, others),
        last_entry_id=EntryId(2**60),
        length=2**60,
    )
    encode_ledger(ended)


def test_fragment_limit() -> None:
    fragments = tuple(
        Fragment(EntryId(n), (BookieId(f"{n % 2}"), BookieId("b"))) for n in range(FRAGMENTS_MAX)
    )
    data = encode_ledger(LEDGER.with_changes(fragments=fragments))
    assert decode_ledger(PATH, LedgerId(7), data).fragments == fragments
    one_more = (*fragments, Fragment(EntryId(FRAGMENTS_MAX), (BookieId("a"), BookieId("b"))))
    with pytest.raises(ConfigurationError, match=f"{FRAGMENTS_MAX + 1} fragments"):
        encode_ledger(LEDGER.with_changes(fragments=one_more))


def test_bookie_round_trip_and_damage() -> None:
    info = BookieInfo(BookieId("b-1"), "h:1", BookieState.READ_ONLY, "/r", 5, "h:2", "it is full")
    data = encode_bookie(info)
    assert decode_bookie("p", BookieId("b-1"), data) == info
    with pytest.raises(CorruptionError, match=r"'p' is damaged: it holds 'b-1'"):
        decode_bookie("p", BookieId("b-2"), data)
    with pytest.raises(CorruptionError, match="'p'"):
        decode_node(BookieNode, "p", data.replace(b'"h:1"', b'""'))


LEAST = LedgerMetadata(
    ledger_id=LedgerId(0),
    quorums=Quorums(1, 1, 1),
    fragments=(Fragment(EntryId(0), (BookieId("a"),)),),
)


def test_ledger_with_smallest_values_round_trips_and_smaller_is_damage() -> None:
    data = encode_ledger(LEAST)
    assert decode_ledger(PATH, LedgerId(0), data) == LEAST
    fields = msgspec.json.decode(data)
    for name in ("ledger_id", "length", "creation_time_ms", "ensemble_size", "ack_quorum"):
        damaged = msgspec.json.encode(fields | {name: -1})
        with pytest.raises(CorruptionError, match=name):
            decode_ledger(PATH, LedgerId(0), damaged)
    with pytest.raises(CorruptionError, match="damaged"):
        decode_ledger(PATH, LedgerId(0), msgspec.json.encode(fields | {"fragments": [[0, [""]]]}))


def test_fragments_ascend_one_by_one() -> None:
    fragments = [[0, ["a", "b"]], [1, ["a", "b"]], [2, ["b", "a"]]]
    found = decode_ledger(PATH, LedgerId(7), change(fragments=fragments)).fragments
    assert [fragment.first_entry for fragment in found] == [0, 1, 2]
    for wrong in ([[0, ["a", "b"]], [2, ["a", "b"]], [1, ["a", "b"]]], [[-1, ["a", "b"]]]):
        with pytest.raises(CorruptionError, match="damaged"):
            decode_ledger(PATH, LedgerId(7), change(fragments=wrong))
    with pytest.raises(CorruptionError, match="fragment 5 needs 2"):
        decode_ledger(PATH, LedgerId(7), change(fragments=[[0, ["a", "b"]], [5, ["a", "b", "c"]]]))


def test_bookie_cluster_and_counter_golden_bytes() -> None:
    info = BookieInfo(BookieId("b-1"), "h:1", BookieState.WRITABLE, "/r", 5, "h:2")
    assert encode_bookie(info) == (
        b'{"format_version":1,"bookie_id":"b-1","address":"h:1","state":"writable","rack":"/r",'
        b'"free_bytes":5,"admin_address":"h:2","reason":""}'
    )
    counter = CounterNode(next_id=0, token="t")
    assert encode_node(counter) == b'{"format_version":1,"next_id":0,"token":"t"}'
    assert decode_node(CounterNode, "p", encode_node(counter)) == counter
    with pytest.raises(CorruptionError, match="next_id"):
        decode_node(CounterNode, "p", b'{"format_version":1,"next_id":-1,"token":"t"}')
    cluster = ClusterNode(cluster_id="c")
    assert encode_node(cluster) == b'{"format_version":1,"cluster_id":"c"}'
    with pytest.raises(CorruptionError, match="cluster_id"):
        decode_node(ClusterNode, "p", b'{"format_version":1,"cluster_id":""}')


def test_cluster_with_a_policy_golden_bytes() -> None:
    """A program that knows no placement must not place copies there."""
    policy = PlacementPolicy(2, 3, 4, 5, strict=True)
    node = ClusterNode(cluster_id="c").with_policy(policy)
    data = encode_node(node)
    assert data == (
        b'{"format_version":2,"cluster_id":"c","placement":{"min_racks":2,"min_regions":3,'
        b'"min_racks_for_durability":4,"min_regions_for_durability":5,"strict":true}}'
    )
    found = decode_node(ClusterNode, "p", data)
    assert (found, found.policy) == (node, policy)
    again = found.with_policy(PlacementPolicy())
    assert (again.cluster_id, again.format_version, again.policy) == ("c", 2, PlacementPolicy())
    assert ClusterNode(cluster_id="c").policy == PlacementPolicy()
    for wrong in (b'"min_racks":0', b'"min_racks":2,"zones":1', b'"min_racks":2.5'):
        with pytest.raises(CorruptionError, match="'p'"):
            decode_node(ClusterNode, "p", data.replace(b'"min_racks":2', wrong))


@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"cluster_id":7}', b'{"cluster_id":"\xff"}', b"[" * 5_000]
)
def test_identity_of_a_cluster_is_its_id_or_all_of_a_node_that_has_none(data: bytes) -> None:
    assert cluster_identity(data) == data
    assert cluster_identity(b'{"format_version":99,"cluster_id":"c","zones":[1]}') == b"c"
