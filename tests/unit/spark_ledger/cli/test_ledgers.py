"""``ledger ledgers``: arguments, payloads in and out, exit statuses."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import cast

import pytest

from spark_ledger.cli import inspection, ledgers
from spark_ledger.cli.inspection import LedgerRow
from spark_ledger.cli.ledgers import owner_text, summary
from spark_ledger.cli.show.output import age_text
from spark_ledger.client.blocking_writer import BlockingWriter
from spark_ledger.errors import NotEnoughBookiesError
from spark_ledger.stream.ledgers import ledger_tags
from spark_ledger.types import (
    BookieId,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    LedgerState,
    Quorums,
)
from tests.unit.spark_ledger.cli.conftest import Run
from tests.unit.spark_ledger.cli.fakes import FakeClient, FakeLedger


def test_append_takes_payloads_from_the_line(client: FakeClient, run: Run) -> None:
    outcome = run("ledgers", "append", "one", "two")
    assert outcome == (0, "ledger 1: 2 entries, 6 B\n", "")
    assert client.ledgers[1].payloads == [b"one", b"two"]
    assert client.ledgers[1].is_closed
    assert client.ledgers[1].options["quorums"] == Quorums(3, 3, 2)


def test_append_takes_lines_from_standard_input(client: FakeClient, run: Run) -> None:
    outcome = run("ledgers", "append", "--json", stdin=b"a\r\n\nb")
    assert json.loads(outcome.out) == {"ledger_id": 1, "entries": 3, "bytes": 2}
    assert client.ledgers[1].payloads == [b"a", b"", b"b"]


def test_append_cuts_a_file_into_pieces(client: FakeClient, run: Run, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"abc\ndefg\n")
    outcome = run("ledgers", "append", "--file", str(tmp_path / "data"), "--entry-bytes", "4")
    assert outcome.status == 0
    assert client.ledgers[1].payloads == [b"abc\n", b"defg", b"\n"]


def test_append_options_reach_the_ledger(
    client: FakeClient, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "s3")
    replication = ("--ensemble", "2", "--write-quorum", "2", "--ack-quorum", "1")
    more = ("--meta", "app=x", "--meta", "k=a=b", "--password", "env:SECRET")
    assert run("ledgers", "append", "x", *replication, *more).status == 0
    ledger = client.ledgers[1]
    assert ledger.options["quorums"] == Quorums(2, 2, 1)
    assert ledger.options["custom_metadata"] == {"app": "x", "k": "a=b"}
    assert ledger.password == b"s3"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("ledgers", "append", "x", "--meta", "novalue"), "KEY=VALUE"),
        (("ledgers", "append", "x", "--file", "-"), "not both"),
        (("ledgers", "append", "x", "--ack-quorum", "4"), "ack_quorum 4"),
        (("ledgers", "append", "x", "--password", "env:NO_SUCH_NAME"), "NO_SUCH_NAME"),
        (("ledgers", "append", "x", "--password", "file:/no/such"), "/no/such"),
        (("ledgers", "append", "--entry-bytes", "0"), "--entry-bytes"),
        (("ledgers", "read", "x"), "'x' is no ledger id: see them with: ledger ledgers list"),
        (("ledgers", "read", "-1"), "-1"),
        (("ledgers", "nonsense"), "nonsense"),
        (("nonsense",), "nonsense"),
        (("stream", "list"), "No such command 'stream'. Did you mean 'streams'?"),
        (("ledgers", "delete", "1"), "no terminal to ask at: add --yes"),
    ],
)
def test_wrong_usage_exits_2_and_names_the_argument(
    client: FakeClient, run: Run, arguments: tuple[str, ...], words: str
) -> None:
    outcome = run(*arguments)
    assert outcome.status == 2
    assert words in outcome.err
    assert outcome.out == ""
    assert not client.ledgers


@pytest.mark.parametrize("command", ["create", "append"])
@pytest.mark.parametrize("content", ["", "\n", "\r\n"])
def test_password_that_is_empty_makes_no_ledger_without_protection(
    client: FakeClient,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    content: str,
) -> None:
    """A file whose writing failed, a variable of a deployment that was left out."""
    (tmp_path / "secret").write_text(content)
    monkeypatch.setenv("SECRET", "")
    for source in ("env:SECRET", f"file:{tmp_path}/secret"):
        payload = ["x"] * (command == "append")
        outcome = run("ledgers", command, *payload, "--password", source)
        assert outcome.status == 2
        assert f"--password {source} is empty" in outcome.err
    assert not client.ledgers


def test_password_may_be_any_bytes(
    client: FakeClient, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_bytes(b"\xff\xfe\n")
    monkeypatch.setenv("SECRET", os.fsdecode(b"\xff\xfe"))
    for source in ("env:SECRET", f"file:{tmp_path}/secret", os.fsdecode(b"\xff\xfe")):
        assert run("ledgers", "create", "--password", source).status == 0
    assert [ledger.password for ledger in client.ledgers.values()] == [b"\xff\xfe"] * 3


def test_read_prints_payloads(client: FakeClient, run: Run) -> None:
    run("ledgers", "append", "a", "b", "c")
    assert run("ledgers", "read", "1") == (0, "a\nb\nc\n", "")
    assert run("ledgers", "read", "1", "--first", "1", "--last", "1") == (0, "b\n", "")
    assert run("ledgers", "read", "1", "--last", "0").out == "a\n"
    assert run("ledgers", "read", "1", "--hex", "--first", "2").out == "2 63\n"
    assert run("ledgers", "read", "1", "--first", "3") == (0, "", "")
    assert run("ledgers", "read", "1", "--first", "2", "--last", "1").status == 2


def test_read_json_keeps_bytes_that_are_no_text(client: FakeClient, run: Run) -> None:
    run("ledgers", "append", "--entry-bytes", "2", stdin=b"ok\xff\x00")
    lines = [json.loads(line) for line in run("ledgers", "read", "1", "--json").out.splitlines()]
    assert lines == [
        {"entry_id": 0, "payload": "ok"},
        {"entry_id": 1, "payload_base64": "/wA="},
    ]


def test_tail_prints_and_ends(client: FakeClient, run: Run) -> None:
    run("ledgers", "append", "a", "b")
    assert run("ledgers", "tail", "1", "--start", "1", "--idle-timeout", "0.1").out == "b\n"


def test_create_prints_the_id_only(client: FakeClient, run: Run) -> None:
    assert run("ledgers", "create") == (0, "1\n", "")
    assert client.ledgers[1].is_closed
    assert run("ledgers", "create", "--leave-open").out == "2\n"
    assert not client.ledgers[2].is_closed


def test_recover_closes(client: FakeClient, run: Run) -> None:
    run("ledgers", "create", "--leave-open")
    assert run("ledgers", "recover", "1").out == "ledger 1 is closed; last entry -1\n"
    assert client.recovered == [1]


def test_delete(client: FakeClient, run: Run) -> None:
    run("ledgers", "append", "x")
    assert run("ledgers", "delete", "--yes", "1").status == 0
    outcome = run("ledgers", "delete", "--yes", "1")
    assert outcome.status == 1
    expected = (
        "error: ledger 1 does not exist; see which ledgers exist with: ledger ledgers list.\n"
    )
    assert outcome.err == expected


@pytest.mark.parametrize("failing", [0, 2, 4])
def test_append_of_which_an_entry_is_not_confirmed_fails(
    client: FakeClient, run: Run, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    honest = FakeLedger.append_many_async

    def append_many_async(self: FakeLedger, payloads: list[bytes]) -> Future[range]:
        if b"%d" % failing not in payloads:
            return honest(self, payloads)
        future: Future[range] = Future()
        future.set_exception(NotEnoughBookiesError("too few bookies are left"))
        return future

    monkeypatch.setattr(FakeLedger, "append_many_async", append_many_async)
    monkeypatch.setattr(ledgers, "_BATCH_ENTRIES", 2)
    outcome = run("ledgers", "append", "0", "1", "2", "3", "4")
    assert outcome.status == 1 and outcome.out == ""
    assert "too few bookies are left" in outcome.err


def test_append_of_a_file_takes_many_lines_at_once(client: FakeClient, run: Run) -> None:
    lines = [b"%d" % n for n in range(450)]
    assert run("ledgers", "append", stdin=b"\n".join(lines)).status == 0
    assert client.ledgers[1].payloads == lines
    assert client.ledgers[1].batches == [200, 200, 50]
    assert run("ledgers", "append", "--entry-bytes", "40000", stdin=bytes(100_000)).status == 0
    assert client.ledgers[2].batches == [1, 2]


def test_append_from_a_pipe_does_not_wait_for_the_line_behind() -> None:
    ledger = FakeLedger(1, b"", {})
    seen: list[int] = []

    def lines() -> Iterator[bytes]:
        for number in range(3):
            seen.append(len(ledger.payloads))
            yield b"%d" % number

    assert ledgers.append_all(cast(BlockingWriter, ledger), lines(), None, 1) == (3, 3)
    assert seen == [0, 1, 2]


def test_summary_of_an_open_ledger_has_no_end() -> None:
    metadata = LedgerMetadata(
        ledger_id=LedgerId(7),
        quorums=Quorums(1, 1, 1),
        fragments=(Fragment(EntryId(0), (BookieId("b"),)),),
    )
    fields = summary(metadata, owner_lives=True)
    assert (fields["last_entry"], fields["length"]) == (None, None)
    closed = metadata.with_changes(
        state=LedgerState.CLOSED, last_entry_id=EntryId(4), length=9, fragments=metadata.fragments
    )
    fields = summary(closed, owner_lives=True)
    assert (fields["last_entry"], fields["length"]) == (4, 9)


def test_list_counts_the_entries_of_closed_ledgers(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    fragments = (Fragment(EntryId(0), (BookieId("b"),)),)
    made = LedgerMetadata(LedgerId(7), Quorums(1, 1, 1), fragments)
    rows = [
        LedgerRow(
            made.with_changes(state=LedgerState.CLOSED, last_entry_id=EntryId(last), length=9),
            False,
        )
        for last in (-1, 4)
    ]
    monkeypatch.setattr(inspection, "all_ledgers", lambda *_: rows)
    head, *lines = run("ledgers", "list", "--metadata", "zk://h/l").out.splitlines()
    assert "entries" in head
    assert [line.split()[5] for line in lines] == ["0", "5"]


def test_summary_says_what_a_ledger_is_for_and_whose_it_is() -> None:
    raw = LedgerMetadata(
        ledger_id=LedgerId(7),
        quorums=Quorums(1, 1, 1),
        fragments=(Fragment(EntryId(0), (BookieId("b"),)),),
        custom_metadata={"purpose": "of somebody else"},
        incarnation=bytes(16),
        owner="ab",
    )
    fields = summary(raw, owner_lives=False)
    assert (fields["purpose"], fields["stream"]) == ("raw", "")
    assert (fields["owner"], fields["owner_lives"]) == ("ab", False)
    segments = raw.with_changes(custom_metadata=ledger_tags("rides", "1", "segments"))
    fields = summary(segments, owner_lives=True)
    assert (fields["purpose"], fields["stream"]) == ("segments", "rides")
    assert fields["owner_lives"] is True
    assert owner_text("ab", lives=True) == "ab (alive)"
    assert owner_text("", lives=False) == "", "of an older version"


@pytest.mark.parametrize(
    ("age_s", "text"),
    [(5, "5 s"), (60, "1 min"), (7_200, "2 h"), (86_400 * 3, "3 d"), (-50, "0 s")],
)
def test_age_is_in_its_largest_unit(age_s: int, text: str) -> None:
    assert age_text(time.time_ns() // 1_000_000 - age_s * 1000) == text
    assert age_text(0) == ""
