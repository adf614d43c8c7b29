"""Mistakes in options fail at the start, with the option's name and what to do."""

from __future__ import annotations

from typing import Any

import pytest

from tests.spark.conftest import Lab


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stream": None}, "option stream is missing"),
        ({"metadata": None}, "option metadata is missing.*SPARK_LEDGER_METADATA"),
        ({"maxRowPerTrigger": 5}, "did you mean maxRowsPerTrigger"),
        ({"startingPosition": "first"}, "startingPosition = 'first'.*earliest, latest or JSON"),
        ({"startingPosition": "latest", "startingTimestamp": 1}, "exclude each other"),
        ({"ledgerId": 5}, "stream and ledgerId exclude each other"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss = 'maybe': needs true or false"),
        ({"tls.caFile": "/ca.pem"}, r"tls\.caFile"),
    ],
)
def test_bad_read_options_are_named(lab: Lab, options: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        lab.read(**options)


def test_options_for_the_other_mode_are_refused(lab: Lab) -> None:
    lab.numbers(0, 1)
    with pytest.raises(Exception, match="maxRowsPerTrigger is for streaming queries only"):
        lab.read(maxRowsPerTrigger=5).collect()
    with pytest.raises(Exception, match="endingPosition is for batch queries only") as caught:
        lab.collect(lab.follow(endingPosition="latest"))
    assert "Traceback" not in str(caught.value)
    with pytest.raises(Exception, match="sinkId is for streaming queries only"):
        lab.numbers(0, 1, sinkId="x")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"txnAppId": "a"}, "txnAppId needs option txnVersion"),
        ({"ensembleSize": 2, "writeQuorum": 3}, "ensembleSize = 2, writeQuorum = 3"),
        ({"compression": "gzip"}, "compression = 'gzip': needs one of none, lz4, zstd"),
        ({"entryBytes": "1t"}, "entryBytes = '1t': needs a size"),
        ({"stream": "no/slash"}, "stream name 'no/slash'"),
        ({"ledgerId": 7}, "ledgerId is for reading"),
    ],
)
def test_bad_write_options_are_named(lab: Lab, options: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        lab.numbers(0, 1, **options)


def test_streaming_write_with_batch_options_is_refused(lab: Lab) -> None:
    lab.numbers(0, 1)
    writer = lab.another().sink(lab.follow(), txnAppId="a", txnVersion=1)
    with pytest.raises(Exception, match="txnAppId is for batch queries only"):
        writer.trigger(availableNow=True).start().awaitTermination(60)


def test_missing_stream_is_named(lab: Lab) -> None:
    with pytest.raises(Exception, match="does not exist"):
        lab.read()
