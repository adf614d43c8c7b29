"""Malformed messages to a real bookie over a real socket: it refuses them and goes on serving.

Bytes are handed to gRPC as they are, so everything that a hostile client can put into a message is
possible. Every call ends, in a status or an error of gRPC; none ends because the bookie raised
an unforeseen exception, which gRPC reports as UNKNOWN.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import Message

from spark_ledger.runs import EntryRun
from spark_ledger.wire import bookie_pb2 as pb
from spark_ledger.wire.codec import (
    BOOKIE_ID_KEY,
    SERVICE_NAME,
    AddCommand,
    decode_read_response,
    encode_append_request,
)
from spark_ledger.wire.options import transfer_options
from tests.fuzz.mutate import Mutator
from tests.fuzz.wire_targets import sealed_run

LEDGER_ID = 1_000_001
"""The ledger of the honest client; malformed messages name other ledgers."""
CALL_TIMEOUT_S = 20.0
_STREAMED = ("Read", "ListEntries")


def _corpus() -> dict[str, list[bytes]]:
    run = sealed_run(77, [0, 1, 2])
    sparse = sealed_run(78, [4, 9])
    append = [
        encode_append_request([AddCommand(1, b"", False, run)]),
        encode_append_request([AddCommand(1, b"k", True, sparse), AddCommand(2, b"", False, run)]),
    ]
    read = partial(pb.ReadRequest, ledger_id=77, access_key=b"key")
    ask = partial(pb.ReadLastConfirmedRequest, ledger_id=77, access_key=b"key")
    tell = partial(pb.WriteLastConfirmedRequest, ledger_id=77, access_key=b"key")
    unary: dict[str, list[Message]] = {
        "Read": [
            read(first_entry=0, last_entry=5, stride=1, max_bytes=9),
            read(first_entry=1, last_entry=2**62, fence=True),
        ],
        "ReadLastConfirmed": [ask(), ask(fence=True, wait_above=-1, wait_ms=1)],
        "WriteLastConfirmed": [tell(last_add_confirmed=4)],
        "ListEntries": [pb.ListEntriesRequest(ledger_id=77, access_key=b"key")],
    }
    encoded = {
        method: [message.SerializeToString() for message in messages]
        for method, messages in unary.items()
    }
    return {"Append": append, **encoded, "Describe": [b"", b"\x08\x01"]}


def _new_connection(address: str) -> grpc.Channel:
    """A connection of its own: channels to one address share one, even if it has just broken."""
    options = [*transfer_options(), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.insecure_channel(address, options=options)


class HostileClient:
    """Sends malformed messages, and a few honest ones that must be served."""

    def __init__(self, address: str, bookie_id: str, seed: int) -> None:
        self.seed = seed
        self.answers: Counter[str] = Counter()
        self.sent = 0
        self._choose = random.Random(f"socket {seed}")
        self._channel = _new_connection(address)
        self._metadata = ((BOOKIE_ID_KEY, bookie_id),)
        self._mutators = {
            method: Mutator(self._choose, messages, is_text=False)
            for method, messages in _corpus().items()
        }
        self._honest_entries = 0

    def reconnect(self, address: str) -> None:
        """Open a new connection: the old one may not have noticed that its bookie is gone."""
        self._channel.close()
        self._channel = _new_connection(address)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def send_malformed(self) -> None:
        """Send one message to one method. Raises AssertionError if the bookie failed at it."""
        method = self._choose.choice([*self._mutators, "Append", "Append"])
        data = self._mutators[method].draw()
        self.sent += 1
        try:
            answer = self._call(method, data)
        except grpc.RpcError as error:
            code = error.code()
            failures = (
                grpc.StatusCode.UNKNOWN,
                grpc.StatusCode.DEADLINE_EXCEEDED,
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.CANCELLED,
            )
            assert code not in failures, (
                f"seed {self.seed}, message {self.sent}, {method}: {code.name} "
                f"{error.details()}\ninput: {data.hex()}"
            )
            answer = code.name
        self.answers[f"{method}: {answer}"] += 1

    def append_honestly(self) -> None:
        """Add one entry to this client's own ledger; the bookie must keep it."""
        run = sealed_run(LEDGER_ID, [self._honest_entries])
        assert self._append(encode_append_request([AddCommand(5, b"", False, run)])) == "OK"
        self._honest_entries += 1

    def check_honest_entries(self) -> None:
        """Read every entry that was acknowledged, and compare bytes and order."""
        request = pb.ReadRequest(
            ledger_id=LEDGER_ID, first_entry=0, last_entry=self._honest_entries - 1
        )
        found: list[EntryRun] = []
        for data in self._stream("Read", request.SerializeToString()):
            response, run = decode_read_response(data)
            assert response.status == 0, response
            assert run is not None
            found.append(run)
        wanted = sealed_run(LEDGER_ID, list(range(self._honest_entries)))
        assert b"".join(run.frames for run in found) == wanted.frames

    def _call(self, method: str, data: bytes) -> str:
        if method == "Append":
            return self._append(data)
        if method in _STREAMED:
            count = sum(1 for _message in self._stream(method, data))
            return "answered" if count else "empty"
        call: Any = self._channel.unary_unary(f"/{SERVICE_NAME}/{method}")
        call(data, timeout=CALL_TIMEOUT_S, metadata=self._metadata)
        return "answered"

    def _stream(self, method: str, data: bytes) -> Iterable[bytes]:
        call: Any = self._channel.unary_stream(f"/{SERVICE_NAME}/{method}")
        answers: Iterable[bytes] = call(data, timeout=CALL_TIMEOUT_S, metadata=self._metadata)
        return answers

    def _append(self, data: bytes) -> str:
        call: Any = self._channel.stream_stream(f"/{SERVICE_NAME}/Append")
        answers = call(iter([data]), timeout=CALL_TIMEOUT_S, metadata=self._metadata)
        results = [
            pb.Status.Name(result.status)
            for message in answers
            for result in pb.AppendResponse.FromString(message).results
        ]
        return "+".join(sorted(set(results))) or "no result"
