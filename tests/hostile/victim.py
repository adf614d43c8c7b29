"""A real bookie under attack, the clients beside it, and what all went through."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import grpc

from spark_ledger.local import LocalCluster
from spark_ledger.runs import EntryRun
from spark_ledger.types import EntryId, LedgerId
from spark_ledger.wire import bookie_pb2 as pb
from spark_ledger.wire.codec import (
    BOOKIE_ID_KEY,
    SERVICE_NAME,
    AddCommand,
    encode_append_request,
)
from spark_ledger.wire.options import transfer_options
from tests.hostile.beside import Beside
from tests.hostile.visitor import FENCED, WRITTEN
from tests.made_ledgers import make_ledgers

BOOKIE: Final = "bookie-0"
OTHER: Final = "bookie-1"
"""Never attacked. Its neighbour is the control: what the attack takes from the machine at that very
time, and not from the bookie."""

BIG_LEDGER: Final = 2
"""Holds one entry of 16 MiB."""
MANY_LEDGER: Final = 3
"""Holds 64 MiB in entries of 16 KiB."""

FLOODED_LEDGERS: Final = range(10, 60)
"""Known to the cluster, so that hostile clients may append to them."""

_MIB: Final = 1024 * 1024


def plain_run(ledger_id: int, first_entry: int, entries: int, size: int) -> EntryRun:
    """Frames of zeros: a bookie checks their form only."""
    return EntryRun(
        LedgerId(ledger_id), EntryId(first_entry), None, [size] * entries, bytes(entries * size)
    )


class Victim:
    """One bookie with data, its neighbour, its visitor, and the neighbour of another bookie. Ends
    all at the end of the ``with`` block."""

    def __init__(self, directory: Path) -> None:
        self._cluster = LocalCluster(bookies=2, directory=directory / "cluster")
        self.address = self._cluster.bookie_address(0)
        self.admin_address = self._cluster.bookie_admin_address(0)
        self.pid = self._cluster.bookie_pid(0)
        self._peak_mib = 0
        self.neighbour = Beside(self.address, BOOKIE, directory / "latencies")
        self.visitor = Beside(self.address, BOOKIE, directory / "visits", program="visitor")
        self.control = Beside(self._cluster.bookie_address(1), OTHER, directory / "control")

    def __enter__(self) -> Victim:
        try:
            make_ledgers(
                self._cluster.uri, (1, BIG_LEDGER, MANY_LEDGER, WRITTEN, FENCED, *FLOODED_LEDGERS)
            )
            self._fill(self.address, BOOKIE)
            self.neighbour.start()
            self.control.start()
            self.visitor.start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        self.neighbour.kill()
        self.control.kill()
        self.visitor.kill()
        self._cluster.stop()

    @property
    def is_alive(self) -> bool:
        """The bookie was neither restarted nor ended, and those beside it had right answers."""
        same = self._cluster.is_bookie_running(0) and self._cluster.bookie_pid(0) == self.pid
        return same and self.neighbour.is_alive and self.visitor.is_alive

    @property
    def log(self) -> str:
        """What the bookie has written into its log."""
        return self._cluster.bookie_log(0).read_text()

    @property
    def processor_s(self) -> float:
        """Processor time of the bookie so far."""
        text = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8")
        user, system = text.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def forget_peak(self) -> None:
        """Measure the most memory from now on."""
        self._peak_mib = 0

    def look(self) -> None:
        """Note the memory, again and again: the kernel keeps no peak of private memory."""
        self._peak_mib = max(self._peak_mib, self._private_mib())

    def _private_mib(self) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines()
        values = dict(line.split(":", 1) for line in lines)
        return int(values["RssAnon"].split()[0]) // 1024

    def memory(self) -> tuple[int, int]:
        """The most private memory that was seen since ``forget_peak``, and what there is now, in
        MiB. Pages of files do not count: they are the kernel's to take back."""
        now = self._private_mib()
        return max(self._peak_mib, now), now

    @staticmethod
    def _fill(address: str, bookie_id: str) -> None:
        runs = [plain_run(BIG_LEDGER, 0, 1, 16 * _MIB)]
        runs += [plain_run(MANY_LEDGER, first, 64, 16_384) for first in range(0, 4_096, 64)]
        with grpc.insecure_channel(address, options=transfer_options()) as channel:
            call: Any = channel.stream_stream(f"/{SERVICE_NAME}/Append")
            messages = (
                encode_append_request([AddCommand(run.ledger_id, b"", False, run)]) for run in runs
            )
            metadata = ((BOOKIE_ID_KEY, bookie_id),)
            for data in call(messages, timeout=60, metadata=metadata):
                results = pb.AppendResponse.FromString(data).results
                assert all(result.status == pb.OK for result in results), results
