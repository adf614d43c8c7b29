"""The configuration file: what it accepts, and how it names what is wrong."""

from __future__ import annotations

import math
import re
from pathlib import Path

import msgspec
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace('"/b"', '"journal"'), "different directories"),
        (GOOD + "entry_log_bytes = 4294967296\n", "entry_log_bytes is 4294967296: at most"),
        (GOOD + "journal_file_bytes = 1024\n", "journal_file_bytes is 1024: at least 65536"),
        (GOOD + "disk_high_water_mark = 0.5\n", "water"),
    ],
)
def test_values_that_the_storage_refuses_are_refused_before_anything_is_made(
    text: str, message: str
) -> None:
    """Behind the format, directories are made and the name is taken."""
    with pytest.raises(ConfigurationError, match=message) as caught:
        parse(text, PATH)
    assert str(caught.value).startswith(f"configuration file {PATH}: storage: ")


def numbers(kind: type[msgspec.Struct], section: str = "") -> list[tuple[str, str, type]]:
    """Section, key and type of every number in the file."""
    found: list[tuple[str, str, type]] = []
    for field in msgspec.inspect.type_info(kind).fields:  # type: ignore[attr-defined]
        if isinstance(field.type, msgspec.inspect.StructType):
            found += numbers(field.type.cls, field.name)
        elif isinstance(field.type, msgspec.inspect.FloatType):
            found.append((section, field.name, float))
        elif isinstance(field.type, msgspec.inspect.IntType):
            found.append((section, field.name, int))
    return found


def with_value(section: str, key: str, value: str) -> str:
    line = f"{key} = {value}\n"
    if section in ("", "storage"):
        return line + GOOD if not section else GOOD + line
    return f"{GOOD}[{section}]\n{line}"


NUMBERS = numbers(BookieConfig)
OF_THE_KEEPER = [each for each in NUMBERS if each[0] in ("keeper", "autorecovery")]
"""Infinity is as good as any for these; it is told at most what it takes on its command line."""


@pytest.mark.parametrize(
    ("section", "key", "value", "bound"),
    [
        *((s, k, v, "<") for s, k, kind in NUMBERS if kind is float for v in ("nan", "-1.0")),
        *(
            (s, k, v, "<=")
            for s, k, kind in NUMBERS
            if kind is float and (s, k, kind) not in OF_THE_KEEPER
            for v in ("inf", "1e300", "3153600001.0")
        ),
        *(
            (s, k, str(v), "<=")
            for s, k, kind in NUMBERS
            if kind is int and (s, k, kind) not in OF_THE_KEEPER
            for v in (2**63, 10**30)
        ),
        ("storage", "journal_file_bytes", str(2**63 - 1), "<= 1099511627776"),
        ("storage", "index_map_bytes", str(2**47), "<= 70368744177664"),
        ("", "session_timeout_s", "3600.1", "<= 3600.0"),
    ],
)
def test_number_beyond_what_the_program_can_take_is_named_with_its_bound(
    section: str, key: str, value: str, bound: str
) -> None:
    """Else it is a traceback, and a supervisor starts the bookie again for ever."""
    with pytest.raises(ConfigurationError) as caught:
        parse(with_value(section, key, value), PATH)
    assert f"{section}.{key}".strip(".") in str(caught.value)
    assert bound in str(caught.value) or bound == "<"


def test_longest_times_and_largest_files_are_taken() -> None:
    text = GOOD + "flush_interval_s = 3153600000.0\njournal_file_bytes = 1099511627776\n"
    assert parse(text, PATH).storage.flush_interval_s == 36_500 * 86_400
    for section, key, kind in OF_THE_KEEPER:
        assert parse(with_value(section, key, "inf" if kind is float else str(10**30)), PATH)


def test_a_configuration_does_not_change() -> None:
    config: BookieConfig = parse(GOOD, PATH)
    with pytest.raises(AttributeError):
        config.rack = "/x"  # type: ignore[misc]
