"""The data of metadata nodes: JSON with a format version, decoded strictly.

| node | fields |
|---|---|
| ledger | format_version, ledger_id, ensemble_size, write_quorum, ack_quorum, state, fragments as |
| | ``[[first_entry, [bookie, ...]], ...]``, last_entry_id, length, digest_type, |
| | access_key_hash (base64), creation_time_ms, creation_token, custom_metadata; since format 2 |
| | also incarnation (base64), since format 3 also owner |
| owner | format_version, owner, host, pid |
| bookie | format_version, bookie_id, address, state, rack, free_bytes, admin_address |
| cluster | format_version, cluster_id; since format 2 also placement, the fields of |
| | ``types.PlacementPolicy`` |
| ledger id counter | format_version, next_id, token |

A node that does not decode raises CorruptionError with its path; a node of a later format raises
ConfigurationError that says to upgrade. Unknown fields are refused: an older program would drop
them silently with its next write.
"""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Annotated, ClassVar, Final

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from spark_ledger.errors import ConfigurationError, CorruptionError
from spark_ledger.limits.entries import (
    FRAGMENTS_MAX,
    LEDGER_METADATA_BYTES_MAX,
    LEDGER_METADATA_ENDED_BYTES_MAX,
    LEDGER_METADATA_NEW_BYTES_MAX,
)
from spark_ledger.metadata.json_nodes import FORMAT_VERSION, Count, Node, decode_node, encode_node
from spark_ledger.types import (
    INCARNATION_BYTES,
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

INCARNATION_FORMAT_VERSION: Final = 2
"""Of ledgers with an incarnation. A program that does not know of it would derive other keys."""

LEDGER_FORMAT_VERSION: Final = 3
"""Of ledgers with an owner. A program that does not know of it would drop the owner with its next
write, and nobody would recover the ledger."""

_LastEntry = Annotated[int, Meta(ge=-1)]
CLUSTER_PLACEMENT_FORMAT: Final = 2
"""Cluster nodes that hold a placement policy."""

_AtLeastOne = Annotated[int, Meta(ge=1)]
_Name = Annotated[str, Meta(min_length=1)]


class LedgerNode(Node, frozen=True, kw_only=True):
    """One ledger."""

    newest_format: ClassVar[int] = LEDGER_FORMAT_VERSION

    ledger_id: Count
    ensemble_size: Count
    write_quorum: Count
    ack_quorum: Count
    state: LedgerState
    fragments: Annotated[
        list[tuple[Count, list[_Name]]], Meta(min_length=1, max_length=FRAGMENTS_MAX)
    ]
    last_entry_id: _LastEntry
    length: Count
    digest_type: DigestType
    access_key_hash: bytes
    creation_time_ms: Count
    creation_token: str
    custom_metadata: dict[str, str]
    incarnation: bytes | UnsetType = UNSET
    owner: _Name | UnsetType = UNSET


class OwnerNode(Node, frozen=True, kw_only=True):
    """One connection that makes ledgers, and the process that it belongs to."""

    owner: _Name
    host: str
    pid: Count


class BookieNode(Node, frozen=True, kw_only=True):
    """One registered bookie."""

    bookie_id: _Name
    address: _Name
    state: BookieState
    rack: str
    free_bytes: Count
    admin_address: str
    reason: str = ""


class PlacementFields(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A ``PlacementPolicy``."""

    min_racks: _AtLeastOne = 1
    min_regions: _AtLeastOne = 1
    min_racks_for_durability: _AtLeastOne = 1
    min_regions_for_durability: _AtLeastOne = 1
    strict: bool = False


class ClusterNode(Node, frozen=True, kw_only=True):
    """The cluster's identity, and where it wants copies. A program that knows no placement must not
    place copies where there is a policy, so that has a format of its own."""

    newest_format: ClassVar[int] = CLUSTER_PLACEMENT_FORMAT
    cluster_id: _Name
    placement: PlacementFields | UnsetType = UNSET

    @property
    def policy(self) -> PlacementPolicy:
        """The cluster's placement policy."""
        fields = PlacementFields() if self.placement is UNSET else self.placement
        return PlacementPolicy(**structs.asdict(fields))

    def with_policy(self, policy: PlacementPolicy) -> ClusterNode:
        """The node with another policy."""
        fields = PlacementFields(**dataclasses.asdict(policy))
        return structs.replace(
            self,
            placement=fields,
            format_version=max(self.format_version, CLUSTER_PLACEMENT_FORMAT),
        )


class CounterNode(Node, frozen=True, kw_only=True):
    """The next ledger id.

    ``token`` is new with each write. Without it, two clients would write equal bytes, and one that
    lost its reply would take the other's write for its own.
    """

    next_id: Count
    token: str


def encode_ledger(metadata: LedgerMetadata, *, is_new: bool = False) -> bytes:
    """The node of a ledger. Raises ConfigurationError if it is larger than a node may be, or a new
    one than leaves room for the changes of its ensemble."""
    quorums = metadata.quorums
    data = encode_node(
        LedgerNode(
            ledger_id=metadata.ledger_id,
            ensemble_size=quorums.ensemble_size,
            write_quorum=quorums.write_quorum,
            ack_quorum=quorums.ack_quorum,
            state=metadata.state,
            fragments=[(each.first_entry, list(each.bookies)) for each in metadata.fragments],
            last_entry_id=metadata.last_entry_id,
            length=metadata.length,
            digest_type=metadata.digest_type,
            access_key_hash=metadata.access_key_hash,
            creation_time_ms=metadata.creation_time_ms,
            creation_token=metadata.creation_token,
            custom_metadata=dict(metadata.custom_metadata),
            incarnation=metadata.incarnation or UNSET,
            owner=metadata.owner or UNSET,
            format_version=_ledger_format(metadata),
        )
    )
    most = LEDGER_METADATA_NEW_BYTES_MAX if is_new else _node_bytes_max(metadata)
    if len(data) > most or len(metadata.fragments) > FRAGMENTS_MAX:
        custom_bytes = sum(len(k) + len(v) for k, v in metadata.custom_metadata.items())
        raise ConfigurationError(
            f"ledger {metadata.ledger_id}: its metadata need {len(data)} bytes with "
            f"{len(metadata.fragments)} fragments and {custom_bytes} characters of custom "
            f"metadata; at most {most} bytes and {FRAGMENTS_MAX} fragments "
            "are possible: use less custom metadata, or continue in a new ledger"
        )
    return data


def _node_bytes_max(metadata: LedgerMetadata) -> int:
    if metadata.state is LedgerState.OPEN:
        return LEDGER_METADATA_BYTES_MAX
    return LEDGER_METADATA_ENDED_BYTES_MAX


def _ledger_format(metadata: LedgerMetadata) -> int:
    if metadata.owner:
        assert metadata.incarnation, "who names an owner makes an incarnation"
        return LEDGER_FORMAT_VERSION
    return INCARNATION_FORMAT_VERSION if metadata.incarnation else FORMAT_VERSION


def decode_ledger(path: str, ledger_id: LedgerId, data: bytes) -> LedgerMetadata:
    """The ledger in a node. Every rule that the constructors assert is checked here first.

    Raises CorruptionError if it breaks one, ConfigurationError if it has a later format.
    """
    node = decode_node(LedgerNode, path, data)
    problem = _ledger_problem(node, ledger_id)
    if problem:
        raise CorruptionError(f"metadata node {path!r} is damaged: {problem}")
    try:
        quorums = Quorums(node.ensemble_size, node.write_quorum, node.ack_quorum)
    except ConfigurationError as error:
        raise CorruptionError(f"metadata node {path!r} is damaged: {error}") from error
    return LedgerMetadata(
        ledger_id=ledger_id,
        quorums=quorums,
        fragments=tuple(
            Fragment(EntryId(first_entry), tuple(BookieId(bookie) for bookie in bookies))
            for first_entry, bookies in node.fragments
        ),
        state=node.state,
        last_entry_id=EntryId(node.last_entry_id),
        length=node.length,
        digest_type=node.digest_type,
        access_key_hash=node.access_key_hash,
        creation_time_ms=node.creation_time_ms,
        creation_token=node.creation_token,
        custom_metadata=node.custom_metadata,
        incarnation=b"" if node.incarnation is UNSET else node.incarnation,
        owner="" if node.owner is UNSET else node.owner,
    )


def _ledger_problem(node: LedgerNode, ledger_id: LedgerId) -> str | None:
    if node.ledger_id != ledger_id:
        return f"it holds ledger {node.ledger_id}"
    wanted = 0 if node.format_version == FORMAT_VERSION else INCARNATION_BYTES
    found = 0 if node.incarnation is UNSET else len(node.incarnation)
    if found != wanted:
        return f"its incarnation has {found} bytes, and needs {wanted}"
    if (node.owner is UNSET) is (node.format_version >= LEDGER_FORMAT_VERSION):
        return f"format version {node.format_version} and an owner do not fit"
    firsts = [first_entry for first_entry, _ in node.fragments]
    if firsts[0] != 0 or any(a >= b for a, b in pairwise(firsts)):
        return f"fragments start at {firsts[:5]}..., not at 0 and ascending"
    for first_entry, bookies in node.fragments:
        if len(bookies) != node.ensemble_size or len(set(bookies)) != len(bookies):
            return f"fragment {first_entry} needs {node.ensemble_size} distinct bookies"
    return None


def encode_bookie(info: BookieInfo) -> bytes:
    """The node of a registered bookie."""
    return encode_node(
        BookieNode(
            bookie_id=info.bookie_id,
            address=info.address,
            state=info.state,
            rack=info.rack,
            free_bytes=info.free_bytes,
            admin_address=info.admin_address,
            reason=info.reason,
        )
    )


def decode_bookie(path: str, bookie_id: BookieId, data: bytes) -> BookieInfo:
    """The bookie in a node.

    Raises CorruptionError if it does not decode or is of another bookie, ConfigurationError if it
    has a later format.
    """
    node = decode_node(BookieNode, path, data)
    if node.bookie_id != bookie_id:
        raise CorruptionError(f"metadata node {path!r} is damaged: it holds {node.bookie_id!r}")
    return BookieInfo(
        bookie_id=bookie_id,
        address=node.address,
        state=node.state,
        rack=node.rack,
        free_bytes=node.free_bytes,
        admin_address=node.admin_address,
        reason=node.reason,
    )
