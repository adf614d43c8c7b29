"""The hand-made encodings agree with protobuf's own, and bad bytes are refused."""

from __future__ import annotations

from itertools import islice
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ledger.errors import MalformedMessageError
from spark_ledger.limits import KIB
from spark_ledger.limits.entries import APPEND_MESSAGE_ADDS_MAX, ENTRY_PAYLOAD_BYTES_MAX
from spark_ledger.runs import EntryRun
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from spark_ledger.wire import bookie_pb2 as pb
from spark_ledger.wire import codec
from spark_ledger.wire.codec import (
    FRAME_BYTES_MAX,
    FRAME_BYTES_MIN,
    AddCommand,
    ReceivedAdd,
    append_response_parts,
    decode_append_request,
    decode_read_response,
    encode_append_request,
    encode_read_end,
    encode_read_response,
    status_from_wire,
    status_to_wire,
)
from spark_ledger.wire.frame import HEADER


@st.composite
def runs(draw: st.DrawFn) -> EntryRun:
    sizes = draw(st.lists(st.integers(FRAME_BYTES_MIN, 300), min_size=1, max_size=8))
    first = draw(st.integers(0, 2**62))
    ids = None
    if draw(st.booleans()):
        gaps = draw(st.lists(st.integers(1, 1000), min_size=len(sizes), max_size=len(sizes)))
        ids = [first + sum(gaps[1 : i + 1]) for i in range(len(sizes))]
    frames = draw(st.binary(min_size=1, max_size=4)).translate(bytes(range(128)) * 2) * sum(sizes)
    ledger = LedgerId(draw(st.integers(0, 2**63 - 1)))
    return EntryRun(ledger, EntryId(first), ids, sizes, frames[: sum(sizes)])


adds = st.builds(
    AddCommand,
    tag=st.integers(0, 2**64 - 1),
    access_key=st.binary(max_size=32),
    recovery=st.booleans(),
    run=runs(),
)


def as_protobuf(add: AddCommand) -> pb.AddRun:
    return pb.AddRun(
        tag=add.tag,
        access_key=add.access_key,
        recovery=add.recovery,
        run=pb.EntryRun(
            ledger_id=add.run.ledger_id,
            first_entry=add.run.first_entry,
            entry_ids=add.run.entry_ids,
            sizes=add.run.sizes,
            frames=add.run.frames,
        ),
    )


@given(st.lists(adds, max_size=4))
def test_append_requests_are_those_of_protobuf(commands: list[AddCommand]) -> None:
    message = pb.AppendRequest(adds=[as_protobuf(command) for command in commands])
    assert pb.AppendRequest.FromString(encode_append_request(commands)) == message
    for data in (encode_append_request(commands), message.SerializeToString()):
        received = list_of(data)
        assert [add[:3] for add in received] == [command[:3] for command in commands]
        assert [add.run for add in received] == [command.run for command in commands]
        assert all(not add.error for add in received)


@given(runs())
def test_read_responses_are_those_of_protobuf(run: EntryRun) -> None:
    message = pb.ReadResponse(run=as_protobuf(AddCommand(0, b"", False, run)).run)
    assert pb.ReadResponse.FromString(encode_read_response([run])) == message
    for data in (encode_read_response([run]), message.SerializeToString()):
        response, decoded = decode_read_response(data)
        assert (response.status, decoded) == (pb.OK, run)


def test_runs_in_one_read_response_keep_their_ids() -> None:
    def run(first: int, count: int, ids: list[int] | None = None) -> EntryRun:
        frames = bytes([first]) * 2 * count
        return EntryRun(LedgerId(1), EntryId(first), ids, [2] * count, frames)

    def together(*runs: EntryRun) -> tuple[int, list[int] | None, list[int], bytes]:
        _response, found = decode_read_response(encode_read_response(runs))
        assert found is not None
        ids = None if found.entry_ids is None else list(found.entry_ids)
        return found.first_entry, ids, list(found.sizes), found.frames

    zeros, twos = bytes(4), bytes([2]) * 6
    assert together(run(0, 2), run(2, 3)) == (0, None, [2] * 5, zeros + twos)
    assert together(run(0, 2), run(5, 1)) == (0, [0, 1, 5], [2] * 3, zeros + bytes([5, 5]))
    assert together(run(0, 2, [0, 1]), run(2, 3)) == (0, None, [2] * 5, zeros + twos)
    assert together(run(4, 2, [4, 9])) == (4, [4, 9], [2] * 2, bytes([4]) * 4)


@pytest.mark.parametrize("size", [127, 128, 129, 16_383, 16_384, 16_385])
def test_sizes_at_the_borders_of_a_number_are_those_of_protobuf(size: int) -> None:
    """A length takes one more byte from 128 on, and from 16,384 on: that of the frames, of their
    run, or of its add."""
    for frames_bytes in range(size - 60, size + 1):
        run = EntryRun(LedgerId(1), EntryId(3), None, [frames_bytes], b"f" * frames_bytes)
        add = AddCommand(1, b"k" * 32, False, run)
        message = pb.ReadResponse(run=as_protobuf(add).run)
        assert pb.ReadResponse.FromString(encode_read_response([run])) == message
        with patch.object(codec, "_SMALL_BYTES_MAX", 0):
            encoded = encode_append_request([add])
        assert pb.AppendRequest.FromString(encoded) == pb.AppendRequest(adds=[as_protobuf(add)])


def test_the_end_of_a_read_names_the_entry() -> None:
    data = encode_read_end(BookieStatus.NO_SUCH_ENTRY, EntryId(7), "not held")
    response, run = decode_read_response(data)
    assert run is None
    assert (response.status, response.entry_id, response.message) == (2, 7, "not held")


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_decoded_or_refused(data: bytes) -> None:
    for decode in (list_of, decode_read_response):
        try:
            decode(data)
        except MalformedMessageError as error:
            assert "malformed" in str(error)


@given(adds, st.data())
def test_a_cut_or_damaged_request_is_decoded_or_refused(
    add: AddCommand, data: st.DataObject
) -> None:
    good = bytearray(encode_append_request([add]))
    good[data.draw(st.integers(0, len(good) - 1))] ^= data.draw(st.integers(1, 255))
    for bad in (bytes(good), bytes(good[: data.draw(st.integers(0, len(good)))])):
        try:
            received = list_of(bad)
        except MalformedMessageError:
            continue
        assert all(one.error or sum(one.run.sizes) == len(one.run.frames) for one in received)


def list_of(data: bytes) -> list[ReceivedAdd]:
    return list(decode_append_request(data))


def error_of(run: pb.EntryRun) -> str:
    data = pb.AppendRequest(adds=[pb.AddRun(run=run)]).SerializeToString()
    (add,) = decode_append_request(data)
    return add.error


FRAME = b"f" * 40
NO_LAC = HEADER.pack(0, 0, -1, 0) + b"f" * 8
NEGATIVE_LAC = HEADER.pack(0, 0, -2, 0) + b"f" * 8
"""A bookie that stored it would take it for damage at its next start."""


@pytest.mark.parametrize(
    ("run", "error"),
    [
        (pb.EntryRun(sizes=[40], frames=FRAME), ""),
        (pb.EntryRun(), "no entries"),
        (pb.EntryRun(sizes=[40], frames=b"f" * 41), "do not add up"),
        (pb.EntryRun(ledger_id=-1, sizes=[40], frames=FRAME), "negative"),
        (pb.EntryRun(first_entry=-1, sizes=[40], frames=FRAME), "negative"),
        (pb.EntryRun(sizes=[0, 80], frames=FRAME * 2), "do not add up"),
        (pb.EntryRun(sizes=[20, 60], frames=FRAME * 2), "a frame of 20 bytes"),
        (pb.EntryRun(sizes=[35], frames=b"f" * 35), "1 frames in 35 bytes"),
        (pb.EntryRun(entry_ids=[0, 1], sizes=[40], frames=FRAME), "2 entry ids for 1 frames"),
        (pb.EntryRun(entry_ids=[0, 0], sizes=[40, 40], frames=FRAME * 2), "not ascending"),
        (pb.EntryRun(entry_ids=[1, 2], sizes=[40, 40], frames=FRAME * 2), "do not match"),
        (pb.EntryRun(entry_ids=[1], sizes=[40], frames=FRAME), "do not match"),
        (pb.EntryRun(first_entry=2**63 - 2, sizes=[40, 40], frames=FRAME * 2), "ids end below"),
        (pb.EntryRun(first_entry=2**63 - 1, sizes=[40], frames=FRAME), "ids end below"),
        (pb.EntryRun(sizes=[40], frames=NEGATIVE_LAC), "last add confirmed is -2"),
        (pb.EntryRun(sizes=[40, 40], frames=FRAME + NEGATIVE_LAC), "last add confirmed is -2"),
        (pb.EntryRun(sizes=[40], frames=NO_LAC), ""),
    ],
)
def test_malformed_runs_are_named(run: pb.EntryRun, error: str) -> None:
    assert error in error_of(run)
    assert bool(error) == bool(error_of(run))


def test_the_largest_frame_is_the_largest_payload_with_its_overhead() -> None:
    assert FRAME_BYTES_MAX == ENTRY_PAYLOAD_BYTES_MAX + 48
    assert error_of(pb.EntryRun(sizes=[FRAME_BYTES_MAX], frames=bytes(FRAME_BYTES_MAX))) == ""
    too_large = pb.EntryRun(sizes=[FRAME_BYTES_MAX + 1], frames=bytes(FRAME_BYTES_MAX + 1))
    assert "at most" in error_of(too_large)


def test_frame_that_is_too_large_is_refused_beside_small_ones() -> None:
    with patch.object(codec, "FRAME_BYTES_MAX", 100):
        assert error_of(pb.EntryRun(sizes=[40, 100], frames=bytes(140))) == ""
        for sizes in ([40, 101], [101, 40]):
            assert "at most 100" in error_of(pb.EntryRun(sizes=sizes, frames=bytes(141)))


def test_run_that_claims_many_frames_is_refused_unexpanded() -> None:
    run = pb.EntryRun(ledger_id=5, first_entry=9, sizes=[1] * 7, frames=FRAME)
    data = pb.AppendRequest(adds=[pb.AddRun(run=run)]).SerializeToString()
    (add,) = decode_append_request(data)
    assert "7 frames in 40 bytes" in add.error
    assert (add.run.ledger_id, add.run.first_entry, add.run.count) == (5, 9, 0), "it is named"
    run = pb.EntryRun(sizes=[1] * 100_000, frames=FRAME)
    with pytest.raises(MalformedMessageError, match="numbers for at most 1 frames"):
        list_of(pb.AppendRequest(adds=[pb.AddRun(run=run)]).SerializeToString())


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\x0a\x00" * (APPEND_MESSAGE_ADDS_MAX + 1), "adds"),
        (b"\x0a\x00" * (APPEND_MESSAGE_ADDS_MAX + 1000), "adds"),
        (b"\x78\x00" * (APPEND_MESSAGE_ADDS_MAX + 1), "adds"),
        (b"\x0a\x42" + b"\x78\x00" * 33, "more than 32 fields"),
        (pb.AppendRequest(adds=[pb.AddRun(access_key=bytes(2000))]).SerializeToString(), "long"),
    ],
    ids=["adds", "adds-that-stand-together", "unknown-fields", "fields-of-an-add", "access-key"],
)
def test_message_of_too_much_is_refused_where_it_becomes_too_much(data: bytes, error: str) -> None:
    """Two million empty adds fit into 4 MB, and would take a minute. So would to look from each of
    them on how many stand together."""
    with (
        patch.object(codec, "_small_adds", wraps=codec._small_adds) as looks,
        pytest.raises(MalformedMessageError, match=error),
    ):
        list_of(data)
    assert looks.call_count <= 2 or data[0] == 0x78


@pytest.mark.parametrize("payload_bytes", [0, 100, 17_000])
@pytest.mark.parametrize("ids", [None, [3, 5]])
def test_small_and_large_requests_are_decoded_alike(
    payload_bytes: int, ids: list[int] | None
) -> None:
    size = FRAME_BYTES_MIN + payload_bytes
    frames = 2 * (HEADER.pack(1, 3, 2, 0) + bytes(size - HEADER.size))
    run = EntryRun(LedgerId(1), EntryId(3), ids, [size, size], frames)
    sent = [AddCommand(1, b"k" * 32, False, run), AddCommand(2, b"", True, run)]
    found = list_of(encode_append_request(sent))
    assert found == [ReceivedAdd(*command, EntryId(2), "") for command in sent]
    assert all(type(one.run.frames) is bytes and type(one.run.sizes) is list for one in found)


def test_small_and_large_adds_of_one_request_keep_their_order() -> None:
    """A bookie stores the runs of a ledger as they come: one that came early would be refused."""
    sizes = [FRAME_BYTES_MIN, FRAME_BYTES_MIN + 17_000, FRAME_BYTES_MIN]
    runs = [EntryRun(LedgerId(1), EntryId(i), None, [n], bytes(n)) for i, n in enumerate(sizes)]
    sent = [AddCommand(1, b"", False, run) for run in runs]
    assert [add.run for add in list_of(encode_append_request(sent))] == runs


def test_as_many_small_adds_as_may_be_in_a_request_are_decoded() -> None:
    """In several stretches, of which the last is short."""
    runs = [
        EntryRun(LedgerId(number), EntryId(number), None, [40], FRAME)
        for number in range(APPEND_MESSAGE_ADDS_MAX)
    ]
    sent = [AddCommand(run.ledger_id, b"", False, run) for run in runs]
    assert [add.run for add in list_of(encode_append_request(sent))] == runs


def test_more_small_adds_than_may_be_in_a_request_are_refused() -> None:
    """Those of all stretches count together, and one too many is refused."""
    run = EntryRun(LedgerId(1), EntryId(0), None, [40], FRAME)
    data = encode_append_request([AddCommand(1, b"", False, run)] * (APPEND_MESSAGE_ADDS_MAX + 1))
    received = decode_append_request(data)
    taken = list(islice(received, APPEND_MESSAGE_ADDS_MAX))
    assert len(taken) == APPEND_MESSAGE_ADDS_MAX
    with pytest.raises(MalformedMessageError, match=f"more than {APPEND_MESSAGE_ADDS_MAX} adds"):
        next(received)


def test_unusual_add_among_small_ones_is_taken_in_its_place() -> None:
    """Its tag is there twice, which protobuf allows. Each add is tried with others once only."""
    good = pb.AddRun(tag=1, run=pb.EntryRun(sizes=[40], frames=FRAME)).SerializeToString()
    adds = [good, b"\x08\x07" + good, *[good] * 100]
    data = b"".join(b"\x0a" + bytes([len(add)]) + add for add in adds)
    with patch.object(codec, "_decode_small", wraps=codec._decode_small) as together:
        found = list_of(data)
    assert [(add.tag, add.error) for add in found] == [(1, "")] * 102
    assert together.call_count == 1


def test_field_that_is_there_twice_in_a_good_run_is_refused() -> None:
    """Protobuf takes the last one: what was checked must be what is stored."""
    run = pb.EntryRun(sizes=[40], frames=FRAME).SerializeToString()
    twice = pb.EntryRun(frames=b"g" * 40).SerializeToString() + run
    add = b"\x0a" + bytes([len(twice)]) + twice
    with pytest.raises(MalformedMessageError, match="twice"):
        list_of(b"\x0a" + bytes([len(add)]) + add)


def test_long_access_key_of_a_good_run_is_refused() -> None:
    run = pb.EntryRun(sizes=[40], frames=FRAME)
    adds = [pb.AddRun(run=run, access_key=bytes(600)), pb.AddRun(run=run, access_key=bytes(1100))]
    received = decode_append_request(pb.AppendRequest(adds=adds).SerializeToString())
    assert len(next(received).access_key) == 600
    with pytest.raises(MalformedMessageError, match="long"):
        next(received)


def test_adds_before_a_malformed_one_are_decoded() -> None:
    run = EntryRun(LedgerId(1), EntryId(0), None, [40], FRAME)
    adds = decode_append_request(encode_append_request([AddCommand(1, b"", False, run)]) + b"\xff")
    assert next(adds).run == run
    with pytest.raises(MalformedMessageError):
        next(adds)


def test_a_field_that_is_there_twice_is_refused() -> None:
    one = pb.EntryRun(frames=FRAME).SerializeToString()
    add = b"\x0a" + bytes([len(one) * 2]) + one + one
    with pytest.raises(MalformedMessageError, match="malformed"):
        list_of(b"\x0a" + bytes([len(add)]) + add)


@pytest.mark.parametrize("digits", [10, 11])
def test_a_number_of_more_than_ten_bytes_is_refused(digits: int) -> None:
    """Ten bytes of seven bits hold 64 bits; no honest sender needs more."""
    data = b"\x78" + b"\x80" * (digits - 1) + b"\x00"  # a field of a newer version
    if digits == 10:
        assert list_of(data) == []
    else:
        with pytest.raises(MalformedMessageError, match="malformed"):
            list_of(data)


def test_fields_of_a_newer_version_are_skipped() -> None:
    run = EntryRun(LedgerId(1), EntryId(0), None, [40], FRAME)
    data = encode_append_request([AddCommand(1, b"", False, run)])
    newer = b"\x78\x05" + data + b"\x7a\x02hi" + b"\x7d1234" + b"\x7912345678"
    (add,) = decode_append_request(newer)
    assert add.run == run


@pytest.mark.parametrize("payload_bytes", [0, 20_000])
def test_fields_come_in_any_order(payload_bytes: int) -> None:
    """As protobuf allows: frames that come first are no part of what stands behind them."""
    frames = FRAME + bytes(payload_bytes)
    run = pb.EntryRun(frames=frames).SerializeToString()
    run += pb.EntryRun(ledger_id=1, first_entry=3, sizes=[len(frames)]).SerializeToString()
    add = b"\x0a" + codec._varint(len(run)) + run
    add += pb.AddRun(tag=7, access_key=b"key", recovery=True).SerializeToString()
    found = list_of(b"\x0a" + codec._varint(len(add)) + add)
    wanted = EntryRun(LedgerId(1), EntryId(3), None, [len(frames)], frames)
    assert [(each.tag, each.access_key, each.recovery, each.run) for each in found] == [
        (7, b"key", True, wanted)
    ]
    end = pb.ReadResponse(entry_id=5, message="said last").SerializeToString()
    response, decoded = decode_read_response(b"\x22" + codec._varint(len(run)) + run + end)
    assert (decoded, response.entry_id, response.message) == (wanted, 5, "said last")


def test_statuses_have_the_numbers_of_the_protocol() -> None:
    sent = [status for status in BookieStatus if status < BookieStatus.UNAVAILABLE]
    assert [(s.name, int(s)) for s in sent] == list(pb.Status.items())
    assert all(status_from_wire(status_to_wire(status)) is status for status in sent)
    assert status_from_wire(99) is BookieStatus.UNKNOWN_STATE
    assert not status_from_wire(99).is_denial
    with pytest.raises(AssertionError):
        status_to_wire(BookieStatus.TIMEOUT)


def test_fields_that_only_protobuf_refuses_are_malformed() -> None:
    """Field 0 does not exist. Our walk over the fields passes it; protobuf refuses it."""
    bad = b"\x00\x01"
    with pytest.raises(MalformedMessageError, match="malformed"):
        decode_read_response(bad)
    for add in (bad, b"\x0a\x02" + bad):  # in the add itself, and in its run
        with pytest.raises(MalformedMessageError, match="malformed"):
            list_of(b"\x0a" + bytes([len(add)]) + add)


def test_a_run_that_reaches_into_the_next_add_is_refused() -> None:
    """Its length ends within the message, but behind the end of its add."""
    run = EntryRun(LedgerId(1), EntryId(0), None, [40], FRAME)
    one = encode_append_request([AddCommand(1, b"", False, run)])
    (at,) = (i for i in range(len(one)) if one[i] == 0x2A and one[i + 1] == 40)
    longer = one[: at + 1] + bytes([41]) + one[at + 2 :]
    assert list_of(one + one)
    with pytest.raises(MalformedMessageError, match="malformed"):
        list_of(longer + one)


def test_an_add_that_reaches_into_the_next_is_refused() -> None:
    run = EntryRun(LedgerId(1), EntryId(0), None, [40], FRAME)
    one = encode_append_request([AddCommand(1, b"", False, run)])
    with pytest.raises(MalformedMessageError, match="malformed"):
        list_of(one[:-1] + one)


def a_long_response() -> bytes:
    """Results of all sizes, one of them larger than a part."""
    results = [pb.AddResult(tag=n, last_entry=n**3, message="x" * (n % 90)) for n in range(5_000)]
    results[2_000].message = "y" * 100_000
    return pb.AppendResponse(results=results).SerializeToString()


def test_parts_of_an_append_response_are_it_once_more() -> None:
    data = a_long_response()
    parts = list(append_response_parts(data))
    assert b"".join(parts) == data and max(map(len, parts)) < 64 * KIB + 100_000 + 200
    assert len(parts) >= len(data) // (128 * KIB), "each is short"
    whole = pb.AppendResponse.FromString(data)
    results = [each for part in parts for each in pb.AppendResponse.FromString(part).results]
    assert results == list(whole.results)
    assert list(append_response_parts(b"")) == [b""]


@pytest.mark.parametrize("unknown", [0, 1, 32, 33])
def test_append_response_of_a_newer_version_has_some_more_fields(unknown: int) -> None:
    data = a_long_response() + b"\x10\x01" * unknown
    if unknown > 32:
        with pytest.raises(MalformedMessageError, match="too many unknown fields"):
            list(append_response_parts(data))
    else:
        assert b"".join(append_response_parts(data)) == data


def test_append_response_that_breaks_off_is_refused() -> None:
    data = a_long_response()
    with pytest.raises(MalformedMessageError, match="malformed"):
        list(append_response_parts(data[:-1]))
