"""The command line of ``connector.migrate``."""

from __future__ import annotations

import json

import pytest

from connector.migrate import Job, parse, show

BASE = ("--metadata", "zk://h/l", "--stream", "s", "--checkpoint", "c")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "give either --files or --bootstrap-servers"),
        (("--metadata", ""), "give --metadata, or the environment variable SPARK_LEDGER_METADATA"),
        (("--files", "f", "--bootstrap-servers", "h:1"), "give either --files"),
        (("--bootstrap-servers", "h:1"), "--bootstrap-servers needs --topic"),
        (("--files", "f", "--files-per-batch", "0"), "needs a whole number above 0"),
    ],
)
def test_wrong_arguments_are_refused_in_a_sentence(
    arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse([*BASE, *arguments])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_arguments_make_a_job_whose_name_has_the_stream() -> None:
    job, as_json = parse([*BASE, "--files", "f", "--json"])
    assert as_json and job.name == "migrate/s"
    assert job == Job("zk://h/l", "s", "c", "f", "parquet", False, "", "", 1_000_000, 100)


def test_report_is_two_lines_or_one_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    report: dict[str, object] = {"stream": "s", "records": 4, "copied": 1, "proved": False}
    show(report, as_json=False)
    assert capsys.readouterr().out == "stream s: 4 records, 1 of this run\nNOT PROVED\n"
    show(report, as_json=True)
    assert json.loads(capsys.readouterr().out) == report
