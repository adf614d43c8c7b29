"""Protobuf messages to and from our values, with one copy of the frames where it counts.

Messages that carry frames (AppendRequest, ReadResponse) are encoded here by hand: the small
fields go through protobuf, and the frames are joined in behind them under their field key, which
is valid protobuf because fields may come in any order. Going through protobuf's own objects costs
forty times as much per MiB, because the bytes are copied into an arena that grows by doubling.
``tests/unit/spark_ledger/wire/test_codec.py`` holds the encodings against protobuf's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple, cast

from google.protobuf.message import DecodeError

from spark_ledger.errors import MalformedMessageError
from spark_ledger.limits import KIB
from spark_ledger.limits.entries import (
    APPEND_MESSAGE_ADDS_MAX,
    ENTRY_FRAME_OVERHEAD_BYTES_MAX,
    ENTRY_PAYLOAD_BYTES_MAX,
)
from spark_ledger.runs import ENTRY_ID_END, EntryRun, run_error
from spark_ledger.types import NO_ENTRY, BookieStatus, EntryId, LedgerId
from spark_ledger.wire import bookie_pb2 as pb
from spark_ledger.wire.frame import frame_last_add_confirmed

FRAME_BYTES_MIN: Final = 32 + 4
"""Header and the shortest digest (``wire.frame``)."""

FRAME_BYTES_MAX: Final = ENTRY_PAYLOAD_BYTES_MAX + ENTRY_FRAME_OVERHEAD_BYTES_MAX
"""A frame around the largest payload."""

ADD_FIELDS_BYTES_MAX: Final = 1024
"""An add without its run: a tag, an access key of 32 bytes, a flag."""

SERVICE_NAME: Final = "spark_ledger.v1.Bookie"
"""Full name of the service in ``bookie.proto``."""

BOOKIE_ID_KEY: Final = "bookie-id"
"""Call metadata: the bookie that the client means to talk to."""

# Keys of the bytes fields handled here by hand: field number << 3 | 2.
_REQUEST_ADDS: Final = 0x0A
_ADD_RUN: Final = 0x0A
_RUN_FRAMES: Final = 0x2A
_RESPONSE_RESULTS: Final = 0x0A
_RESPONSE_RUN: Final = 0x22

_FIELDS_MAX: Final = 32
"""Of one add or run. Ours have five, and lists are packed into one each: a peer that sends more of
them is newer, or wants us to be busy."""

_SMALL_BYTES_MAX: Final = 16 * KIB
"""An add that protobuf may encode by itself: a copy of so few bytes costs nothing."""

_TOGETHER_BYTES_MAX: Final = 64 * KIB
"""Small adds that protobuf may decode by itself, all at once: so little takes no time from others,
and what a hostile client can make of it is no danger."""

_NUMBER_BYTES_MAX: Final = 10 + 5
"""An entry id and a size, of each frame."""

_STATUSES: Final = {int(status): status for status in BookieStatus if status < 100}


class AddCommand(NamedTuple):
    """One run that a client sends for one of its appenders, named by ``tag``."""

    tag: int
    access_key: bytes
    recovery: bool
    run: EntryRun


class ReceivedAdd(NamedTuple):
    """An AddCommand as a bookie received it. ``error`` says why it is malformed, or is empty."""

    tag: int
    access_key: bytes
    recovery: bool
    run: EntryRun
    last_add_confirmed: EntryId
    error: str


def status_from_wire(number: int) -> BookieStatus:
    """The status with this number; one from a newer version is unknown, which is no denial."""
    return _STATUSES.get(number, BookieStatus.UNKNOWN_STATE)


def status_to_wire(status: BookieStatus) -> pb.Status:
    """The protobuf enum value of a status that a bookie sends."""
    assert status in _STATUSES, f"{status.name} is never sent"
    return cast("pb.Status", int(status))


def encode_append_request(adds: Iterable[AddCommand]) -> bytes:
    """An AppendRequest; the frames of each large run are copied once.

    The fields of a message may come in parts, each encoded by itself. Protobuf copies frames more
    often than is needed, but of small adds it encodes two while Python code encodes one.
    """
    parts: list[bytes] = []
    small = pb.AppendRequest()
    for add in adds:
        if len(add.run.frames) <= _SMALL_BYTES_MAX:
            _fill(small.adds.add(), add)
        else:
            parts.append(small.SerializeToString())  # in order: a bookie takes runs as they come
            small.Clear()
            parts += _large_add(add)
    parts.append(small.SerializeToString())
    return b"".join(parts)


def append_response_parts(data: bytes) -> Iterator[bytes]:
    """An AppendResponse in parts, each one by itself and of few results: its receiver does other
    things in between. Mostly it is one.

    Raises MalformedMessageError, where it comes to it, if the bytes are not an AppendResponse.
    """
    start = unknown = 0
    try:
        if len(data) > _TOGETHER_BYTES_MAX:
            for key, _, end in _fields(data, 0, len(data)):
                unknown += key != _RESPONSE_RESULTS
                if unknown > _FIELDS_MAX:
                    raise ValueError("too many unknown fields")  # noqa: TRY301 - here
                if end - start >= _TOGETHER_BYTES_MAX:
                    yield data[start:end]
                    start = end
    except (IndexError, ValueError) as error:
        raise MalformedMessageError(
            f"an append response of {len(data)} bytes is malformed: {error}"
        ) from error
    yield data[start:]


def _fill(message: pb.AddRun, add: AddCommand) -> None:
    message.tag = add.tag
    message.access_key = add.access_key
    message.recovery = add.recovery
    run, fields = add.run, message.run
    fields.ledger_id = run.ledger_id
    fields.first_entry = run.first_entry
    if run.entry_ids is not None:
        fields.entry_ids.extend(run.entry_ids)
    fields.sizes.extend(run.sizes)
    fields.frames = run.frames


def _large_add(add: AddCommand) -> tuple[bytes, ...]:
    """An add of an AppendRequest, in parts."""
    tag, access_key, recovery, run = add
    fields = pb.AddRun(tag=tag, access_key=access_key, recovery=recovery).SerializeToString()
    run_fields, run_bytes = _run_fields(run, run.entry_ids, run.sizes, len(run.frames))
    run_size = _varint(run_bytes)
    add_size = _varint(len(fields) + 1 + len(run_size) + run_bytes)
    keys = b"%c" % _REQUEST_ADDS, b"%c" % _ADD_RUN
    return keys[0], add_size, fields, keys[1], run_size, run_fields, run.frames


def decode_append_request(data: bytes) -> Iterator[ReceivedAdd]:
    """The adds of an AppendRequest one by one, each checked: a large message takes long, and its
    receiver does other things in between.

    Raises MalformedMessageError, where it comes to it, if the bytes are not an AppendRequest, or
    hold more adds than one may have.
    """
    position = number = unusual_to = 0
    try:
        while position < len(data):
            if position >= unusual_to:
                end, count = _small_adds(data, position)
                if 0 < count <= APPEND_MESSAGE_ADDS_MAX - number:
                    adds = _decode_small(data[position:end])
                    if adds is not None:
                        yield from adds
                        position, number = end, number + count
                        continue
                unusual_to = end  # these one by one: what is wrong with one of them is named
            if number == APPEND_MESSAGE_ADDS_MAX:
                raise ValueError(f"more than {APPEND_MESSAGE_ADDS_MAX} adds")  # noqa: TRY301 - here
            key, start, position = next(_fields(data, position, len(data)))
            number += 1
            if key == _REQUEST_ADDS:  # else a field from a newer version
                yield _decode_add(data, start, position)
    except (DecodeError, IndexError, ValueError) as error:
        raise MalformedMessageError(
            f"an append request of {len(data)} bytes is malformed: {error}"
        ) from error


def _small_adds(data: bytes, start: int) -> tuple[int, int]:
    """Where the small adds end that stand together from ``start`` on, and how many they are."""
    position, count, end = start, 0, min(len(data), start + _TOGETHER_BYTES_MAX)
    while position + 2 < end and data[position] == _REQUEST_ADDS:
        size, value_start = data[position + 1], position + 2
        if size >= 0x80:  # a number of two bytes is below 16 KiB
            high = data[value_start]
            if high >= 0x80:
                break
            size, value_start = size & 0x7F | high << 7, value_start + 1
        if value_start + size > end:
            break
        position, count = value_start + size, count + 1
    return position, count


def _decode_add(data: bytes, start: int, end: int) -> ReceivedAdd:
    """The add in this range; its frames are copied once.

    Raises DecodeError, IndexError or ValueError if it is none.
    """
    rest, run_range = _cut_field(data, start, end, _ADD_RUN)
    if _length(rest) > ADD_FIELDS_BYTES_MAX:
        raise ValueError("the fields of an add are too long")
    add = pb.AddRun.FromString(_joined(data, rest))
    run, last_confirmed, problem = _checked(*_cut_frames(data, *run_range))
    return ReceivedAdd(add.tag, add.access_key, add.recovery, run, last_confirmed, problem)


def _decode_small(data: bytes) -> list[ReceivedAdd] | None:
    """Small adds that stand together, by protobuf alone: of many ledgers each entry comes by
    itself, and to take one message of protobuf's after the other costs twice as much.

    None if anything about one is unusual: then each field is looked at, and what is wrong is named.
    """
    try:
        request = pb.AppendRequest.FromString(data)
    except DecodeError:
        return None
    if request.ByteSize() != len(data):  # as with a field that is there twice
        return None
    found: list[ReceivedAdd] = []
    for add in request.adds:
        message, access_key = add.run, add.access_key
        frames, sizes = message.frames, message.sizes
        if len(sizes) == 1 and sizes[0] == len(frames) and not message.entry_ids:
            # One entry: nothing has to add up, and the rest is asked of the numbers themselves.
            ledger_id, entry_id = message.ledger_id, message.first_entry
            run = EntryRun(LedgerId(ledger_id), EntryId(entry_id), None, [len(frames)], frames)
            is_bad = ledger_id < 0 or not 0 <= entry_id < ENTRY_ID_END
            if is_bad or len(frames) < FRAME_BYTES_MIN:
                return None
            last_confirmed = frame_last_add_confirmed(run)
        else:
            run, last_confirmed, problem = _checked(message, frames)
            if problem:
                return None
        if last_confirmed < NO_ENTRY or len(access_key) > ADD_FIELDS_BYTES_MAX // 2:
            return None
        found.append(ReceivedAdd(add.tag, access_key, add.recovery, run, last_confirmed, ""))
    return found


def encode_read_response(runs: Sequence[EntryRun]) -> bytes:
    """A ReadResponse with status OK that carries ascending runs of one ledger as one run, so that a
    chunk of small appends is one message; their frames are copied once."""
    first, ids, sizes = runs[0], runs[0].entry_ids, runs[0].sizes
    if len(runs) > 1:
        sizes = list(chain.from_iterable([run.sizes for run in runs]))
        ids = list(chain.from_iterable([run.ids() for run in runs]))
        if ids[-1] - ids[0] + 1 == len(ids):  # ascending, so nothing is missing between
            ids = None
    frames = [run.frames for run in runs]
    run_fields, run_bytes = _run_fields(first, ids, sizes, sum(map(len, frames)))
    return b"".join((b"%c" % _RESPONSE_RUN, _varint(run_bytes), run_fields, *frames))


def encode_read_end(status: BookieStatus, entry_id: EntryId, message: str) -> bytes:
    """The ReadResponse that ends a read: ``entry_id`` is the entry that could not be had."""
    assert status is not BookieStatus.OK, "a read that got everything just ends"
    response = pb.ReadResponse(status=status_to_wire(status), entry_id=entry_id, message=message)
    return response.SerializeToString()


def decode_read_response(data: bytes) -> tuple[pb.ReadResponse, EntryRun | None]:
    """A ReadResponse without its run (protobuf), and the run, whose frames are copied once.

    The run is not checked: frames carry a digest, which readers verify.

    Raises MalformedMessageError if the bytes are not a ReadResponse.
    """
    try:
        rest, (start, end) = _cut_field(data, 0, len(data), _RESPONSE_RUN)
        response = pb.ReadResponse.FromString(_joined(data, rest))
        run = _decode_run(*_cut_frames(data, start, end)) if end > start else None
    except (DecodeError, IndexError, ValueError) as error:
        raise MalformedMessageError(f"a read response of {len(data)} bytes is malformed") from error
    return response, run


def _decode_run(message: pb.EntryRun, frames: bytes) -> EntryRun:
    ids = message.entry_ids
    return EntryRun(
        LedgerId(message.ledger_id),
        EntryId(message.first_entry),
        list(ids) if ids else None,
        list(message.sizes),
        frames,
    )


def _checked(message: pb.EntryRun, frames: bytes) -> tuple[EntryRun, EntryId, str]:
    """The run of a message and its frames, its last add confirmed, and why it is malformed, or "".

    A run with impossible counts is refused before its lists are made: they would cost many times
    the size of a hostile message.
    """
    count = len(message.sizes)
    problem: str | None = None
    if count * FRAME_BYTES_MIN > len(frames):
        problem = f"{count} frames in {len(frames)} bytes: one has {FRAME_BYTES_MIN} or more"
    elif len(message.entry_ids) not in (0, count):
        problem = f"{len(message.entry_ids)} entry ids for {count} frames"
    if problem is not None:
        empty = EntryRun(LedgerId(message.ledger_id), EntryId(message.first_entry), (), (), b"")
        return empty, NO_ENTRY, problem
    run = _decode_run(message, frames)
    last_confirmed, problem = _checked_frames(run)
    return run, last_confirmed, problem


def _checked_frames(run: EntryRun) -> tuple[EntryId, str]:
    """The last add confirmed of a run, and why the run is malformed, or ""."""
    problem = run_error(run)
    if problem is None and min(run.sizes) < FRAME_BYTES_MIN:
        problem = f"a frame of {min(run.sizes)} bytes: at least {FRAME_BYTES_MIN} are needed"
    if problem is None and max(run.sizes) > FRAME_BYTES_MAX:
        problem = f"a frame of {max(run.sizes)} bytes: at most {FRAME_BYTES_MAX} are allowed"
    if problem is not None:
        return NO_ENTRY, problem
    last_confirmed = frame_last_add_confirmed(run)
    if last_confirmed < NO_ENTRY:
        problem = f"a frame whose last add confirmed is {last_confirmed}"
    return last_confirmed, problem or ""


def _cut_frames(data: bytes, start: int, end: int) -> tuple[pb.EntryRun, bytes]:
    """The protobuf EntryRun encoded there without its frames, and the frames."""
    rest, (frames_start, frames_end) = _cut_field(data, start, end, _RUN_FRAMES)
    # Numbers cost four to eight times their size in memory, so there may be no more than belong to
    # the frames, and none are decoded before that is known.
    count_max = (frames_end - frames_start) // FRAME_BYTES_MIN
    if _length(rest) > ADD_FIELDS_BYTES_MAX + count_max * _NUMBER_BYTES_MAX:
        raise ValueError(f"{_length(rest)} bytes of numbers for at most {count_max} frames")
    return pb.EntryRun.FromString(_joined(data, rest)), data[frames_start:frames_end]


def _length(ranges: list[tuple[int, int]]) -> int:
    return sum(end - start for start, end in ranges)


def _joined(data: bytes, ranges: list[tuple[int, int]]) -> bytes:
    return b"".join([data[start:end] for start, end in ranges])


def _cut_field(
    data: bytes, start: int, end: int, key: int
) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """Where all fields of a message but the bytes field ``key`` are, and that field's value.

    Nothing is copied before its size is known to be right: it may be megabytes. A missing field has
    an empty range. Raises ValueError if it is there twice, or if there are more fields than any
    version has.
    """
    rest: list[tuple[int, int]] = []
    found = (start, start)
    seen = False
    position = start
    for number, (field_key, value_start, value_end) in enumerate(_fields(data, start, end)):
        if number == _FIELDS_MAX:
            raise ValueError(f"more than {_FIELDS_MAX} fields")
        if field_key == key:
            if seen:
                raise ValueError("a field that may be there once is there twice")
            seen, found = True, (value_start, value_end)
        else:
            rest.append((position, value_end))
        position = value_end
    return rest, found


def _fields(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Each field of the message in a range: its key, and where its value starts and ends.

    Raises ValueError or IndexError when the bytes are not a message.
    """
    position = start
    while position < end:
        key, position = _read_varint(data, position)
        wire_type = key & 7
        value_start = position
        if wire_type == 2:
            size, value_start = _read_varint(data, position)
            position = value_start + size
        elif wire_type == 0:
            _, position = _read_varint(data, position)
        elif wire_type in (1, 5):
            position += 8 if wire_type == 1 else 4
        else:
            raise ValueError(f"wire type {wire_type} is not in use")
        if position > end:
            raise ValueError("a field is longer than its message")
        yield key, value_start, position


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """The number at ``position`` and where the next byte is."""
    value = data[position]
    if value < 0x80:  # most are: sixteen are read for each add
        return value, position + 1
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a number has more than ten bytes")


def _run_fields(
    run: EntryRun, ids: Sequence[int] | None, sizes: Sequence[int], size: int
) -> tuple[bytes, int]:
    """Everything but the frames of an encoded EntryRun that begins as ``run``, with ``size`` bytes
    of frames; and the size of the whole."""
    fields = pb.EntryRun(
        ledger_id=run.ledger_id, first_entry=run.first_entry, entry_ids=ids, sizes=sizes
    ).SerializeToString()
    head = b"".join((fields, b"%c" % _RUN_FRAMES, _varint(size)))
    return head, len(head) + size


def _varint(value: int) -> bytes:
    """A length in protobuf's base-128 form."""
    if value < 0x80:
        return bytes((value,))
    digits = bytearray()
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)
