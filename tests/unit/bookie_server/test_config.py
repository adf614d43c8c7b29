"""The configuration file: what it accepts, and how it names what is wrong."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from bookie_server.config import BookieConfig, load, parse
from bookie_server.storage.config import StorageConfig
from spark_ledger.errors import ConfigurationError
from spark_ledger.limits import MIB
from spark_ledger.types import BookieId

PATH = Path("/etc/bookie/bookie.toml")
STORAGE = '[storage]\njournal_directory = "journal"\nledger_directories = ["a", "/b"]\n'
GOOD = 'metadata = "zk://h/ledgers"\n' + STORAGE


def test_the_shipped_file_has_the_defaults_in_its_comments() -> None:
    path = Path(__file__).parents[3] / "conf" / "bookie.toml"
    config = load(path)
    shown = "\n".join(
        line.removeprefix("# ") if " = " in line else line
        for line in path.read_text().splitlines()
        if " = " in line or line.startswith("[")
    )
    assert parse(shown, path) == config


def test_directories_are_taken_from_the_directory_of_the_file() -> None:
    config = parse(GOOD, PATH)
    assert config.journal_directory == Path("/etc/bookie/journal")
    assert config.ledger_directories == (Path("/etc/bookie/a"), Path("/b"))


def test_storage_settings_reach_the_storage() -> None:
    config = parse(GOOD + "write_cache_bytes = 1048576\nflush_interval_s = 3\n", PATH)
    storage = config.storage_config(BookieId("b"), "c")
    assert isinstance(storage, StorageConfig)
    assert (storage.bookie_id, storage.cluster_id) == ("b", "c")
    assert (storage.write_cache_bytes, storage.flush_interval_s) == (1048576, 3.0)
    default = StorageConfig(config.journal_directory, config.ledger_directories, BookieId("b"))
    assert storage.entry_log_bytes == default.entry_log_bytes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("metadta = 1\n" + STORAGE, "unknown key 'metadta', did you mean 'metadata'?"),
        (GOOD + "flush_interval = 1\n", "did you mean 'storage.flush_interval_s'?"),
        (GOOD + "[listen]\nprot = 1\n", "unknown key 'listen.prot', did you mean 'listen.port'?"),
        (GOOD + "[admin]\nport = 70000\n", "admin.port"),
        (GOOD + "[listen]\nhost = 3\n", "listen.host"),
        (GOOD + "write_cache_bytes = 0\n", "storage.write_cache_bytes"),
        ('rack = "r"\n' + GOOD, "rack"),
        ("listen = 3\n" + GOOD, "listen"),
        ('metadata = "x"\n', "missing required field `storage`"),
        (GOOD.replace('["a", "/b"]', "[]"), "storage.ledger_directories"),
        (GOOD.replace('"journal"', '""'), "storage.journal_directory"),
        ("metadata = ", "is not TOML"),
        ("metadata_wait_s = " + "9" * 5000, "is not TOML"),
        ("metadata = " + "[" * 5000, "is not TOML"),
    ],
)
def test_mistakes_in_the_file_are_named_with_their_key(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(text, PATH)
    assert message in str(caught.value)
    assert str(PATH) in str(caught.value)


@pytest.mark.parametrize(
    ("memory_mib", "cache_mib", "needed_mib"), [(300, 256, 491), (512, 288, 534), (215, 8, 216)]
)
def test_budget_that_cannot_hold_the_caches_is_refused(
    memory_mib: int, cache_mib: int, needed_mib: int
) -> None:
    text = f"memory_bytes = {memory_mib * MIB}\n{GOOD}write_cache_bytes = {cache_mib * MIB}\n"
    with pytest.raises(ConfigurationError) as caught:
        parse(text, PATH)
    (needed,) = re.findall(r"together need (\d+): raise it, or lower them", str(caught.value))
    assert math.ceil(int(needed) / MIB) == needed_mib
    enough = text.replace(str(memory_mib * MIB), needed, 1)
    assert parse(enough, PATH).memory_bytes == int(needed)


@pytest.mark.parametrize("name", ["~nobody-of-this-name/x", "a\\u0000b"])
@pytest.mark.parametrize(
    "key", ["rack_file", "rack_script", "storage.journal_directory", "storage.ledger_directories"]
)
def test_path_that_can_be_none_is_named_with_its_key(key: str, name: str) -> None:
    given = {"journal_directory": '"j"', "ledger_directories": '["l"]'}
    section, _, last = key.rpartition(".")
    value = f'["l", "{name}"]' if last == "ledger_directories" else f'"{name}"'
    if section:
        given[last] = value
    before = "" if section else f"{key} = {value}\n"
    storage = "".join(f"{each} = {text}\n" for each, text in given.items())
    text = f'metadata = "zk://h/x"\n{before}[storage]\n{storage}'
    with pytest.raises(ConfigurationError, match=f"{key} is .* no path here"):
        parse(text, PATH)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("", "", ""),
        ("host-1", "host-1", ""),
        ("bookie_0.x.svc.:65535", "bookie_0.x.svc.", "65535"),
        ("10.0.0.1:1", "10.0.0.1", "1"),
        ("::2", "::2", ""),
        ("[::2]", "::2", ""),
        ("[fe80::1%eth0]:3181", "fe80::1%eth0", "3181"),
        ("x" * 63 + ".y9", "x" * 63 + ".y9", ""),
    ],
)
def test_address_for_clients_is_a_host_and_perhaps_a_port(text: str, host: str, port: str) -> None:
    config = parse(f'{GOOD}[listen]\nadvertised_address = "{text}"\n', PATH)
    assert config.listen.advertised == (host, port)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *((f"h:{port}", "from 1 to 65535") for port in ("99999", "0", "", "http", "00003181", "٣")),
        ("http://h", "from 1 to 65535"),
        *((host, "neither a name nor") for host in ("u/h:1", ":1", "u@h", "h o", "ü", "-h")),
        *(
            (host, "neither a name nor")
            for host in ("a..b", ".", "x" * 64, "x." * 127, "h/x", "h\\n")
        ),
        *((host, "is no IP address") for host in ("a:b:c", "::1:x", "[a:b]", "256.0.0.1", "3181")),
        *((host, "that clients can connect to") for host in ("0.0.0.0", "[::]:1", "::")),
        *((host, "brackets hold") for host in ("[::1", "[h]:1", "[]", "[::1]1", "[::1]]")),
    ],
)
def test_address_that_no_client_could_connect_to_is_refused(text: str, why: str) -> None:
    """Else the bookie is registered as writable, and each ledger that needs it fails."""
    with pytest.raises(ConfigurationError) as caught:
        parse(f'{GOOD}[listen]\nadvertised_address = "{text}"\n', PATH)
    assert why in str(caught.value)
    assert f"{PATH}: listen.advertised_address is" in str(caught.value)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"missing\.toml cannot be read"):
        load(tmp_path / "missing.toml")


def test_values_that_do_not_go_together_are_refused_by_the_storage() -> None:
    config = parse(GOOD.replace('"/b"', '"journal"'), PATH)
    with pytest.raises(ConfigurationError, match="different directories"):
        config.storage_config(BookieId("b"), "c")


def test_a_configuration_does_not_change() -> None:
    config: BookieConfig = parse(GOOD, PATH)
    with pytest.raises(AttributeError):
        config.rack = "/x"  # type: ignore[misc]
