"""A steady appender in a process of its own: each entry waits for the one before, at a fixed rate.

``python -m tests.hostile.neighbour ADDRESS BOOKIE FILE`` appends until its standard input ends, and
writes (time, seconds until the acknowledgement) of each entry to FILE. Then it reads every entry
back, and exits with 1 if one is missing or different.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from queue import SimpleQueue
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

LEDGER: Final = 1
PERIOD_S: Final = 0.01
HANG_S: Final = 30.0


class Neighbour:
    """One append stream, one entry at a time."""

    def __init__(self, address: str, bookie_id: str) -> None:
        self._channel = grpc.insecure_channel(address, options=transfer_options())
        self._metadata = ((BOOKIE_ID_KEY, bookie_id),)
        self._messages: SimpleQueue[bytes | None] = SimpleQueue()
        call: Any = self._channel.stream_stream(f"/{SERVICE_NAME}/Append")
        self._answers = call(iter(self._messages.get, None), metadata=self._metadata)
        self.entries = 0

    def append(self) -> float:
        """Seconds until the next entry is acknowledged."""
        began = time.monotonic()
        run = sealed_run(LEDGER, [self.entries])
        self._messages.put(encode_append_request([AddCommand(1, b"", False, run)]))
        watchdog = threading.Timer(HANG_S, self._answers.cancel)
        watchdog.start()
        (result,) = pb.AppendResponse.FromString(next(self._answers)).results
        watchdog.cancel()
        assert (result.status, result.last_entry) == (pb.OK, self.entries), result
        self.entries += 1
        return time.monotonic() - began

    def check(self) -> None:
        """Every acknowledged entry is there with its bytes."""
        first = 0
        ends_at = time.monotonic() + HANG_S
        while first < self.entries:
            try:
                for data in self._read(first):
                    response, run = decode_read_response(data)
                    assert response.status == 0 and run is not None, response
                    assert run.frames == sealed_run(LEDGER, list(run.ids())).frames
                    assert run.first_entry == first
                    first = run.last_entry + 1
            except grpc.RpcError as error:
                # gRPC's lot among the calls that wait after a flood: ask again, as clients do.
                if error.code() is not grpc.StatusCode.CANCELLED or time.monotonic() > ends_at:
                    raise
                time.sleep(0.1)
        self._messages.put(None)
        self._channel.close()

    def _read(self, first: int) -> Any:
        call: Any = self._channel.unary_stream(f"/{SERVICE_NAME}/Read")
        asked = pb.ReadRequest(ledger_id=LEDGER, first_entry=first, last_entry=self.entries - 1)
        return call(asked.SerializeToString(), timeout=60, metadata=self._metadata)


def main() -> None:
    """Append until standard input ends."""
    address, bookie_id, file = sys.argv[1:]
    neighbour = Neighbour(address, bookie_id)
    stop = end_of_input()
    with Path(file).open("w", encoding="ascii", buffering=1) as out:
        due = time.monotonic()
        while not stop.is_set():
            seconds = neighbour.append()
            out.write(f"{time.monotonic():.6f} {seconds:.6f}\n")
            due = max(due + PERIOD_S, time.monotonic() - PERIOD_S)
            time.sleep(max(0.0, due - time.monotonic()))
    neighbour.check()


if __name__ == "__main__":
    main()
