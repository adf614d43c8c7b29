"""The root command: common options, lazy groups, errors as sentences, light start."""

from __future__ import annotations

import subprocess
import sys

import pytest

from spark_ledger import errors
from spark_ledger.cli import app
from spark_ledger.cli.app import GROUPS, sentence
from spark_ledger.version import __version__
from tests.style.sources import ROOT
from tests.unit.spark_ledger.cli.conftest import Run
from tests.unit.spark_ledger.cli.fakes import FakeClient


def test_help_names_every_group(run: Run) -> None:
    outcome = run("--help")
    assert outcome.status == 0
    assert all(name in outcome.out for name in GROUPS)


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_has_help(run: Run, group: str) -> None:
    outcome = run(group, "--help")
    assert outcome.status == 0
    assert "Commands:" in outcome.out


def test_version(run: Run) -> None:
    assert run("--version").out == f"ledger, version {__version__}\n"


def test_metadata_may_stand_anywhere_and_the_later_wins(client: FakeClient, run: Run) -> None:
    run("ledgers", "append", "x")
    run("--metadata", "zk://first/l", "ledgers", "read", "1")
    run("--metadata", "zk://first/l", "ledgers", "read", "1", "--metadata", "zk://second/l")
    assert client.uris == ["zk://from-environment:2181/ledgers", "zk://first/l", "zk://second/l"]


def test_json_may_stand_before_the_group(client: FakeClient, run: Run) -> None:
    assert run("--json", "ledgers", "create").out == '{"ledger_id":1,"closed":true}\n'


def test_without_metadata_the_error_says_how_to_give_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_LEDGER_METADATA", raising=False)
    outcome = run("ledgers", "read", "1")
    assert outcome.status == 2
    assert "--metadata" in outcome.err and "ledger local up" in outcome.err


def test_traceback_only_with_debug(client: FakeClient, run: Run) -> None:
    outcome = run("ledgers", "read", "7")
    assert outcome.status == 1
    assert outcome.err.count("\n") == 1 and "Traceback" not in outcome.err
    assert "Traceback" in run("ledgers", "read", "7", "--debug").err


def test_a_message_of_many_lines_becomes_one_sentence() -> None:
    error = errors.MetadataUnavailableError("cannot reach\n  10.0.0.1:2181. ")
    expected = "cannot reach 10.0.0.1:2181; try again when ZooKeeper answers."
    assert sentence(error) == expected
    assert sentence(errors.ConfigurationError("use 3")) == "use 3."
    assert sentence(errors.FencedError()).startswith("FencedError; another client")


def test_every_error_class_has_a_next_step() -> None:
    def below(kind: type[errors.LedgerError]) -> list[type[errors.LedgerError]]:
        return [kind, *(found for child in kind.__subclasses__() for found in below(child))]

    # The last one's message says what to do.
    no_step = {errors.LedgerError, errors.NotFoundError, errors.MetadataRestoredError}
    for kind in below(errors.LedgerError):
        if kind not in no_step and not issubclass(kind, errors.ConfigurationError):
            assert ";" in sentence(kind("message")), kind


def test_start_up_loads_nothing_heavy() -> None:
    code = (
        "import sys, spark_ledger.cli as cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'rich', 'grpc', 'kazoo', 'pyarrow', 'pyspark', 'asyncio'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_output_cut_off_by_its_reader_is_no_traceback() -> None:
    command = f"{sys.executable} -m spark_ledger.cli --help | true"
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_a_full_disk_below_the_output_is_one_sentence() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        outcome = subprocess.run(
            [sys.executable, "-m", "spark_ledger.cli", "--help"],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert outcome.returncode == 1
    assert outcome.stderr == "error: the output cannot be written: No space left on device.\n"


@pytest.mark.parametrize(("error", "status"), [(BrokenPipeError(), 1), (KeyboardInterrupt(), 130)])
def test_end_from_outside_is_no_traceback(
    client: FakeClient,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    status: int,
) -> None:
    def fail(_self: FakeClient, _name: str) -> None:
        raise error

    given_up: list[bool] = []
    monkeypatch.setattr(app, "give_up_output", lambda: given_up.append(True))
    monkeypatch.setattr(FakeClient, "stream", fail)
    outcome = run("streams", "read", "s")
    assert outcome.status == status
    assert "Traceback" not in outcome.err
    assert bool(given_up) is isinstance(error, BrokenPipeError)
