"""A URI whose password would be taken for hosts or a root is refused wherever one is given, before
anybody is asked for it, and nothing of the password is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import spark_ledger
from bookie_server.config import parse
from bookie_server.process import format_bookie
from bookie_server.server import BookieServer
from connector import sessions
from connector.options import read_options, write_options
from spark_ledger import aio
from spark_ledger.cli.app import main
from spark_ledger.errors import ConfigurationError
from spark_ledger.metadata.zookeeper.store import ZooKeeperStore

URIS = (
    "zk://ledger:2024/secret@zk1:2181/ledgers",
    "zk://user:secr@secret/secret@zk1:2181/l",
    "zk://zk1:2181/user:secret@ledgers",
    "zk://zk1/l?auth=u:secret",
)
BOOKIE = '[storage]\njournal_directory = "j"\nledger_directories = ["l"]\n'


def through_python(uri: str) -> None:
    spark_ledger.connect(uri)


def through_asyncio(uri: str) -> None:
    async def main() -> None:
        await aio.connect(uri)

    asyncio.run(main())


def through_a_read_of_spark(uri: str) -> None:
    options = read_options({"metadata": uri, "stream": "s"}, streaming=True)
    assert "secret" not in repr(options)
    sessions.connection(options.connection)


def through_a_write_of_spark(uri: str) -> None:
    options = write_options({"metadata": uri, "stream": "s"}, streaming=True)
    assert "secret" not in repr(options)
    sessions.connection(options.connection)


def through_a_bookie(uri: str) -> None:
    config = parse(f'metadata = "{uri}"\n{BOOKIE}', Path("/bookie.toml"))
    server = BookieServer(config, ready_file=None, format_if_new=False)
    asyncio.run(server._connect())


def through_the_format_of_a_bookie(uri: str) -> None:
    format_bookie(parse(f'metadata = "{uri}"\n{BOOKIE}', Path("/bookie.toml")))


@pytest.fixture(autouse=True)
def nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(*args: Any, **options: Any) -> ZooKeeperStore:
        raise AssertionError("a part of a password went to the resolver")

    monkeypatch.setattr(ZooKeeperStore, "connect", connect)


@pytest.mark.parametrize("uri", URIS)
@pytest.mark.parametrize(
    "use",
    [
        through_python,
        through_asyncio,
        through_a_read_of_spark,
        through_a_write_of_spark,
        through_a_bookie,
        through_the_format_of_a_bookie,
    ],
)
def test_uri_with_a_password_in_the_wrong_place_is_refused_and_not_shown(
    use: Callable[[str], None], uri: str
) -> None:
    with pytest.raises(ConfigurationError, match="written %2F") as caught:
        use(uri)
    assert "secr" not in str(caught.value) and "2024" not in str(caught.value)


@pytest.mark.parametrize("uri", URIS)
@pytest.mark.parametrize(
    "command", [("ledgers", "list"), ("streams", "list"), ("cluster", "status")]
)
def test_command_refuses_it_too(
    command: tuple[str, ...], uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([*command, "--metadata", uri])
    printed = "".join(capsys.readouterr())
    assert end.value.code == 2 and "written %2F" in " ".join(printed.split())
    assert "secr" not in printed and "2024" not in printed
