"""Fixtures for every test: one real ZooKeeper per session, started when first asked for."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_ledger.local import LocalCluster

_roots = itertools.count()


def pytest_configure() -> None:
    """Let Ctrl-C reach programs under test also where a script runs us in the background, which
    ignores it, and hands that on to every child."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_LONGEST_FIRST = ("spark", "chaos", "sim", "mutants", "fuzz", "crash", "exhaustive", "integration")
"""Folders in the order in which `make test`, which runs several processes, should begin them."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What shares fixtures runs in one process: a file, and all tests of Spark with its session."""
    root = Path(__file__).parent
    for item in items:
        path = item.path.relative_to(root)
        group = "spark" if path.parts[0] == "spark" else str(path)
        item.add_marker(pytest.mark.xdist_group(group))

    def rank(item: pytest.Item) -> int:
        folder = item.path.relative_to(root).parts[0]
        known = folder in _LONGEST_FIRST
        return _LONGEST_FIRST.index(folder) if known else len(_LONGEST_FIRST)

    items.sort(key=rank)


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[LocalCluster]:
    """A ZooKeeper without bookies. Leave it running; tests that kill one start their own."""
    with LocalCluster(bookies=0) as cluster:
        yield cluster


@pytest.fixture
def metadata_uri(zookeeper: LocalCluster) -> str:
    """A metadata URI with a root of its own on the shared ZooKeeper."""
    return f"{zookeeper.uri}/test-{next(_roots)}"
