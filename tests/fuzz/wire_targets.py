"""Parsers of messages: what a bookie reads from clients, and clients from bookies."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from spark_ledger.client.entry_batch import open_batch
from spark_ledger.errors import MalformedMessageError
from spark_ledger.runs import EntryRun, run_error
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from spark_ledger.wire import bookie_pb2 as pb
from spark_ledger.wire.codec import (
    AddCommand,
    ReceivedAdd,
    append_response_parts,
    decode_append_request,
    decode_read_response,
    encode_append_request,
    encode_read_end,
    encode_read_response,
    status_from_wire,
)
from spark_ledger.wire.frame import Crc32cDigest, frame_last_add_confirmed, open_run
from tests.frames import seal
from tests.fuzz.target import Target


def sealed_run(ledger_id: int, ids: list[int]) -> EntryRun:
    """A run of sealed frames."""
    digest = Crc32cDigest()
    frames = [seal(digest, ledger_id, e, e - 1, e, b"payload %d" % e) for e in ids]
    consecutive = ids[-1] - ids[0] == len(ids) - 1
    return EntryRun(
        LedgerId(ledger_id),
        EntryId(ids[0]),
        None if consecutive else ids,
        list(map(len, frames)),
        b"".join(frames),
    )


RUNS = (sealed_run(1, [0]), sealed_run(2, [4, 5, 6]), sealed_run(2**62, [9, 12, 400]))


def wire_targets() -> list[Target]:
    """All targets of this file."""
    adds = [AddCommand(n, b"key" * n, bool(n % 2), run) for n, run in enumerate(RUNS)]
    requests = [encode_append_request(adds[:1]), encode_append_request(adds)]
    responses = [encode_read_response([run]) for run in RUNS]
    responses.append(encode_read_end(BookieStatus.NO_SUCH_ENTRY, EntryId(5), "not here"))
    results = pb.AppendResponse()
    results.results.add(tag=1, ledger_id=1, last_entry=9)
    results.results.add(tag=2**64 - 1, ledger_id=2, last_entry=8, status=3, message="fenced")
    named = (MalformedMessageError,)
    return [
        Target("append request", requests, _append_request, named, 80_000, _judge_adds),
        Target("read response", responses, _read_response, named, 60_000, _judge_entries),
        Target("append response", [results.SerializeToString()], _append_results,
               (DecodeError, *named), 20_000),
        *(
            Target(kind.DESCRIPTOR.name, [_example(kind)], kind.FromString, (DecodeError,), 5_000)
            for kind in (pb.ReadRequest, pb.ReadLastConfirmedRequest, pb.ReadLastConfirmedResponse,
                         pb.WriteLastConfirmedRequest, pb.ListEntriesResponse, pb.DescribeResponse)
        ),
    ]  # fmt: skip


def _append_request(data: bytes) -> object:
    return list(decode_append_request(data))


def _judge_adds(_data: bytes, value: object) -> str:
    """An accepted add can be stored: a bookie relies on each of these."""
    adds: list[ReceivedAdd] = value  # type: ignore[assignment]
    for add in adds:
        if add.error:
            continue
        run = add.run
        if run_error(run) is not None or not 0 <= run.last_entry < 2**63 - 1:
            return f"a run that is malformed: {run_error(run)}"
        if frame_last_add_confirmed(run) < -1:
            return "a frame with an impossible LAC"
    return ""


def _read_response(data: bytes) -> object:
    """Read as a client does: decode, check the form of the run, verify every frame."""
    response, run = decode_read_response(data)
    status_from_wire(response.status)
    if run is None or run_error(run) is not None:
        return ()
    entries, _error = open_batch(Crc32cDigest(), run)
    return tuple(entries or ())


_WRITTEN = {
    (run.ledger_id, entry.entry_id, entry.payload, entry.last_add_confirmed, entry.length)
    for run in RUNS
    for entry in open_run(Crc32cDigest(), run)[0]
}


def _judge_entries(_data: bytes, value: object) -> str:
    for entry in value:  # type: ignore[attr-defined]
        key = (entry.ledger_id, entry.entry_id, entry.payload, entry.last_add_confirmed)
        if (*key, entry.length) not in _WRITTEN:
            return f"delivered {entry!r:.200}"
    return ""


def _append_results(data: bytes) -> object:
    return [
        (result.tag, result.last_entry, status_from_wire(result.status))
        for part in append_response_parts(data)
        for result in pb.AppendResponse.FromString(part).results
    ]


def _example(kind: type) -> bytes:
    message = kind()
    for field in message.DESCRIPTOR.fields:
        if field.name == "ranges":
            message.ranges.add(first_entry=0, last_entry=4)
        elif field.name == "more":
            message.more.add(ledger_id=3, last_add_confirmed=4, access_key=b"key")
        elif field.name == "ledger_ids":
            message.ledger_ids.extend([3, 4])
        elif field.type == field.TYPE_BYTES:
            setattr(message, field.name, b"key")
        elif field.type == field.TYPE_STRING:
            setattr(message, field.name, "text")
        elif field.type == field.TYPE_BOOL:
            setattr(message, field.name, True)
        else:
            setattr(message, field.name, 5)
    data: bytes = message.SerializeToString()
    return data
