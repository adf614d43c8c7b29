"""Fixtures for every test: one real ZooKeeper per session, started when first asked for."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator

import pytest

from spark_ledger.local import LocalCluster

_roots = itertools.count()


def pytest_configure() -> None:
    """Let Ctrl-C reach programs under test also where a script runs us in the background, which
    ignores it, and hands that on to every child."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[LocalCluster]:
    """A ZooKeeper without bookies. Leave it running; tests that kill one start their own."""
    with LocalCluster(bookies=0) as cluster:
        yield cluster


@pytest.fixture
def metadata_uri(zookeeper: LocalCluster) -> str:
    """A metadata URI with a root of its own on the shared ZooKeeper."""
    return f"{zookeeper.uri}/test-{next(_roots)}"
