"""I16: a ledger's password stays in its client. A canary is searched wherever it could leak."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import spark_ledger
from spark_ledger.errors import LedgerError, UnauthorizedError
from spark_ledger.local import LocalCluster

PASSWORD = b"canary-4f1d9a7c"
WRONG = b"canary-00wrong0"


def test_a_password_is_nowhere_but_in_its_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not in logs, reprs, errors, ZooKeeper or on a bookie's disk, not even in part."""
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []
    directory = tmp_path / "cluster"
    with (
        LocalCluster(bookies=3, directory=directory) as cluster,
        spark_ledger.connect(cluster.uri) as client,
    ):
        writer = client.create_ledger(password=PASSWORD)
        writer.append(b"payload")
        for recover in (False, True):
            with pytest.raises(UnauthorizedError) as refused:
                client.open_ledger(writer.ledger_id, recover=recover, password=WRONG)
            shown += _all_texts(refused.value)
        reader = client.open_ledger(writer.ledger_id, recover=True, password=PASSWORD)
        assert [entry.payload for entry in reader.read(0, 0)] == [b"payload"]
        with pytest.raises(LedgerError) as fenced:
            writer.append(b"too late")
        shown += _all_texts(fenced.value)
        shown += [repr(thing) for thing in (client, writer, reader, reader.metadata)]
    shown += [record.getMessage() for record in caplog.records]
    canaries = [text for text in shown if "canary" in text]
    assert not canaries, canaries
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert any(b"payload" in path.read_bytes() for path in files), "the search looks at the disks"
    leaks = [str(path) for path in files if b"canary" in path.read_bytes()]
    assert not leaks, leaks


def _all_texts(error: BaseException | None) -> list[str]:
    """An error with its causes, as a program would log it."""
    texts = []
    while error is not None:
        texts += [str(error), repr(error)]
        error = error.__cause__ or error.__context__
    return texts
