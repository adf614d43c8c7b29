"""What clients write and record: payloads that show damage, and lines of a history."""

from __future__ import annotations

import random
from pathlib import Path

from tests.chaos.payload import LARGE_EVERY, new_value, payload_of, size_of, value_of
from tests.chaos.recorder import Recorder
from tests.history.build import entry
from tests.history.model import Event, History, Phase, verify


def test_payload_gives_back_its_value_and_shows_damage() -> None:
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    for counter in (0, 1, 6, LARGE_EVERY - 1):
        text = new_value("c0g0.w0", 7, counter)
        payload = payload_of(text)
        assert verify(text)
        assert value_of(payload) == text
        assert len(payload) >= size_of(counter)
        at = rng.randrange(len(payload))
        damaged = payload[:at] + bytes([payload[at] ^ 1]) + payload[at + 1 :]
        assert not verify(value_of(damaged)), f"seed {seed}: byte {at}"
        assert not verify(value_of(payload[:-1]))
        assert not verify(value_of(payload + b"x"))
    assert not verify(value_of(b""))


def test_recorder_writes_what_the_checkers_read(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "h", 3)
    first = recorder.begin("w", "append", ledger_id=1, values=(entry(0),))
    recorder.ok(first, entry_id=0, last_add_confirmed=0)
    recorder.error(recorder.begin("w", "append", ledger_id=1, values=(entry(1),)), OSError())
    recorder.failed(recorder.begin("w", "close", ledger_id=1), "TakenOver")
    recorder.close()
    operations = History.load(tmp_path / "h").operations()
    assert [o.phase for o in operations] == [Phase.OK, Phase.UNKNOWN, Phase.FAIL]
    assert operations[0].number == 3 * 10**9 + 1
    assert [o.end.error for o in operations if o.end] == ["", "OSError", "TakenOver"]


def test_event_line_omits_empty_fields(tmp_path: Path) -> None:
    event = Event(5, "w", 1, Phase.INVOKE, "create")
    with History(path=tmp_path / "h") as history:
        history.record(event)
    line = (tmp_path / "h").read_bytes()
    assert line == b'{"time_ns":5,"process":"w","operation":1,"phase":"invoke","name":"create"}\n'
    assert History.load(tmp_path / "h").events == [event]
