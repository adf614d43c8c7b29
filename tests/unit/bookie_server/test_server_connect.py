"""A bookie that starts while the metadata store is down: how it waits, for how long, and for what
it stops."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from bookie_server import server
from bookie_server.config import parse
from bookie_server.server import BookieServer
from spark_ledger.errors import ConfigurationError, MetadataUnavailableError
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree


class Outage:
    """A metadata store that is down for a while. Each attempt takes all of its time, and time is
    ours."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, ends_s: float, wait_s: float) -> None:
        self.now = 1000.0
        self.ends = self.now + ends_s
        self.tried: list[float] = []
        self.sessions: list[object] = []
        self.error: Exception = MetadataUnavailableError("nobody listens")
        text = (
            f'metadata = "zk://h/x"\nmetadata_wait_s = {wait_s}\nsession_timeout_s = 7.0\n'
            '[storage]\njournal_directory = "j"\nledger_directories = ["l"]\n'
        )
        config = parse(text, Path("/bookie.toml"))
        self.server = BookieServer(config, ready_file=None, format_if_new=False)
        self.server._stop = asyncio.Event()
        monkeypatch.setattr(server, "open_store", self.open)
        monkeypatch.setattr(server, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(
            server, "asyncio", SimpleNamespace(sleep=self.sleep, Event=asyncio.Event)
        )

    async def open(
        self, uri: str, *, session_timeout_s: float, connect_timeout_s: float
    ) -> MemoryMetadataStore:
        assert uri == "zk://h/x"
        self.tried.append(round(connect_timeout_s, 6))
        self.sessions.append(session_timeout_s)
        if self.now >= self.ends:
            return MemoryTree().open_session()
        self.now += connect_timeout_s
        raise self.error

    async def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def test_store_that_comes_back_is_found_by_attempts_that_grow_longer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        outage = Outage(monkeypatch, ends_s=11.5, wait_s=60.0)
        store = await outage.server._connect()
        assert isinstance(store, MemoryMetadataStore)
        assert outage.tried == [1.0, 2.0, 4.0, 4.0, 4.0]
        assert set(outage.sessions) == {7.0}, "as configured, at each attempt"

    asyncio.run(main())
    waits = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len(waits) == 4 and "(59 s more): nobody listens" in waits[0]
    assert "(57 s more)" in waits[1]


def test_store_that_does_not_come_back_is_waited_for_as_long_as_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        outage = Outage(monkeypatch, ends_s=1000.0, wait_s=9.0)
        with pytest.raises(
            MetadataUnavailableError, match="no metadata store within 9 s: nobody listens"
        ) as raised:
            await outage.server._connect()
        assert raised.value.__cause__ is outage.error
        assert outage.tried == [1.0, 2.0, 4.0, 1.4], "the last attempt gets what is left"
        assert outage.now == pytest.approx(1009.0)

    asyncio.run(main())


def test_signal_ends_the_wait_for_the_store_behind_the_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        outage = Outage(monkeypatch, ends_s=1000.0, wait_s=600.0)
        outage.server._stop.set()
        with pytest.raises(server.Stopped):
            await outage.server._connect()
        assert outage.tried == [1.0]

    asyncio.run(main())


def test_error_that_waiting_does_not_mend_ends_the_start_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        outage = Outage(monkeypatch, ends_s=1000.0, wait_s=600.0)
        outage.error = ConfigurationError("metadata: no such scheme")
        with pytest.raises(ConfigurationError, match="no such scheme"):
            await outage.server._connect()
        assert outage.tried == [1.0]

    asyncio.run(main())
