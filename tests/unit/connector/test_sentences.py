"""Errors of ours reach Spark's user as one sentence, those of others with their traceback."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType
from pyspark.util import handle_worker_exception

from connector import sentences
from connector.datasource import LedgerDataSource
from spark_ledger.errors import ConfigurationError


@sentences.one_sentence("write", "read")
class Speaker:
    def write(self, error: Exception | None) -> str:
        if error is not None:
            raise error
        return "written"

    def read(self, error: Exception) -> Iterator[int]:
        yield 1
        raise error


def shown(call: Callable[[Exception], object], error: Exception) -> str:
    """What a process of Spark sends to the JVM."""
    try:
        result = call(error)
        for _ in result if isinstance(result, Iterator) else ():
            pass
    except (ConfigurationError, ValueError) as raised:
        out = io.BytesIO()
        handle_worker_exception(raised, out)
        return out.getvalue()[8:].decode()
    raise AssertionError("it raises")


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sentences.HIDE_TRACEBACK, "")
    main = SimpleNamespace(__spec__=SimpleNamespace(name="pyspark.daemon"))
    monkeypatch.setitem(sys.modules, "__main__", main)


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("method", ["write", "read"])
def test_error_of_ours_is_shown_without_traceback(method: str) -> None:
    text = shown(getattr(Speaker(), method), ConfigurationError("do this"))
    assert text.strip() == "spark_ledger.errors.ConfigurationError: do this"


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("method", ["write", "read"])
def test_error_of_others_keeps_its_traceback(method: str) -> None:
    assert shown(getattr(Speaker(), method), ValueError("a bug")).startswith("Traceback")
    assert Speaker().write(None) == "written"


def test_error_outside_of_sparks_processes_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(sentences.HIDE_TRACEBACK, "")
    assert shown(Speaker().write, ConfigurationError("x")).startswith("Traceback")


@pytest.mark.usefixtures("worker")
def test_wrong_option_is_shown_without_traceback() -> None:
    text = shown(lambda _: LedgerDataSource({}).reader(StructType()), ConfigurationError(""))
    assert text.startswith("spark_ledger.errors.ConfigurationError: option stream is missing")


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize(
    ("call", "given"),
    [
        ("initialOffset", ()),
        ("prepareForTriggerAvailableNow", ()),
        ("getDefaultReadLimit", ()),
        ("latestOffset", ({}, ReadAllAvailable())),
        ("reportLatestOffset", ()),
        ("partitions", ({}, {})),
    ],
)
def test_wrong_option_of_a_streaming_read_is_shown_by_whatever_spark_asks_first(
    call: str, given: tuple[object, ...]
) -> None:
    """Spark's runner cannot show an error of ``streamReader`` itself without its own behind it."""
    wrong = {"metadata": "zk://h/l", "stream": "s", "endingPosition": "latest"}
    reader = LedgerDataSource(wrong).streamReader(StructType())
    try:
        text = shown(lambda _: getattr(reader, call)(*given), ConfigurationError(""))
    finally:
        reader.stop()
    assert text.startswith("spark_ledger.errors.ConfigurationError: option endingPosition is for")
