"""A client that comes anew again and again: it connects, writes, fences, reads, and asks for news.

``python -m tests.hostile.visitor ADDRESS BOOKIE FILE`` does so until its standard input ends, and
writes (time, seconds) of each visit to FILE. The steady appender beside it has had its stream since
before the attack: it does not see that a bookie takes in nobody any more. Whoever is told that the
bookie is busy asks again, as clients do; any other answer ends it with an error.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc

from spark_ledger.wire import bookie_pb2 as pb
from spark_ledger.wire.codec import (
    BOOKIE_ID_KEY,
    SERVICE_NAME,
    AddCommand,
    decode_read_response,
    encode_append_request,
)
from spark_ledger.wire.options import transfer_options
from tests.fuzz.wire_targets import sealed_run
from tests.hostile.beside import end_of_input

WRITTEN: Final = 4
FENCED: Final = 5
"""Ledgers of the visitor alone."""

PERIOD_S: Final = 0.5
PAUSE_S: Final = 0.1
"""Before a busy bookie is asked again."""

CALL_S: Final = 5.0

_AGAIN: Final = (
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)
"""gRPC's words for busy, its lot among calls that wait in a flood, and a call that took long."""


class Visitor:
    """One connection for each visit."""

    def __init__(self, address: str, bookie_id: str) -> None:
        self._address = address
        self._metadata = ((BOOKIE_ID_KEY, bookie_id),)
        self._next_entry = 0

    def visit(self) -> float:
        """Seconds until all was served."""
        began = time.monotonic()
        with grpc.insecure_channel(self._address, options=transfer_options()) as channel:
            self._until_served(lambda: self._append(channel))
            self._until_served(lambda: self._fence(channel))
            self._until_served(lambda: self._read(channel))
            self._until_served(lambda: self._poll(channel))
        self._next_entry += 1
        return time.monotonic() - began

    @staticmethod
    def _until_served(ask: Callable[[], int]) -> None:
        while True:
            try:
                status = ask()
            except grpc.RpcError as error:
                if error.code() not in _AGAIN:
                    raise
                status = pb.TOO_MANY_REQUESTS
            if status == pb.OK:
                return
            assert status == pb.TOO_MANY_REQUESTS, status
            time.sleep(PAUSE_S)

    def _append(self, channel: grpc.Channel) -> int:
        call: Any = channel.stream_stream(f"/{SERVICE_NAME}/Append")
        run = sealed_run(WRITTEN, [self._next_entry])
        data = encode_append_request([AddCommand(1, b"", False, run)])
        answers = call(iter((data,)), metadata=self._metadata, timeout=CALL_S)
        (result,) = pb.AppendResponse.FromString(next(answers)).results
        return int(result.status)

    def _fence(self, channel: grpc.Channel) -> int:
        return self._ask(channel, pb.ReadLastConfirmedRequest(ledger_id=FENCED, fence=True))

    def _poll(self, channel: grpc.Channel) -> int:
        wanted = pb.ReadLastConfirmedRequest(ledger_id=WRITTEN, wait_above=2**62, wait_ms=50)
        return self._ask(channel, wanted)

    def _ask(self, channel: grpc.Channel, request: pb.ReadLastConfirmedRequest) -> int:
        call: Any = channel.unary_unary(f"/{SERVICE_NAME}/ReadLastConfirmed")
        data = call(request.SerializeToString(), metadata=self._metadata, timeout=CALL_S)
        return int(pb.ReadLastConfirmedResponse.FromString(data).status)

    def _read(self, channel: grpc.Channel) -> int:
        call: Any = channel.unary_stream(f"/{SERVICE_NAME}/Read")
        entry = self._next_entry
        asked = pb.ReadRequest(ledger_id=WRITTEN, first_entry=entry, last_entry=entry)
        data = asked.SerializeToString()
        (answer,) = call(data, metadata=self._metadata, timeout=CALL_S)
        response, run = decode_read_response(answer)
        if run is not None:
            assert run.frames == sealed_run(WRITTEN, [entry]).frames
        return int(response.status)


def main() -> None:
    """Come again until standard input ends."""
    address, bookie_id, file = sys.argv[1:]
    visitor = Visitor(address, bookie_id)
    stop = end_of_input()
    with Path(file).open("w", encoding="ascii", buffering=1) as out:
        while not stop.is_set():
            seconds = visitor.visit()
            out.write(f"{time.monotonic():.6f} {seconds:.6f}\n")
            time.sleep(PERIOD_S)


if __name__ == "__main__":
    main()
