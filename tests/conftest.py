"""Fixtures for every test: one real ZooKeeper per session, started when first asked for."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from spark_ledger.local import LocalCluster
from tests.effort import ONLY_IN_PROOF

_roots = itertools.count()


def pytest_configure() -> None:
    """Let Ctrl-C reach programs under test also where a script runs us in the background, which
    ignores it, and hands that on to every child."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_LONGEST_FIRST = ("spark", "chaos", "sim", "mutants", "fuzz", "crash", "exhaustive", "integration")
"""Folders in the order in which `make test`, which runs several processes, should begin them."""


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(Path(__file__).parent).parts[0]


@pytest.hookimpl(tryfirst=True)  # before -m looks at marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes longest, and leave to ``make proof`` what is marked so.

    Whoever names a test, or selects by -k or -m, gets what was asked for.
    """
    ranks = {folder: rank for rank, folder in enumerate(_LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(_folder(item), len(ranks)))
    for item in items:
        if item.nodeid.partition("[")[0] in ONLY_IN_PROOF:
            item.add_marker("proof")
    selects = config.option.markexpr or config.option.keyword
    if selects or any("::" in argument for argument in config.args):
        return
    left_out = [item for item in items if item.get_closest_marker("proof")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if not item.get_closest_marker("proof")]


class _ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """What shares fixtures runs in one process: a file, and all tests of Spark with its session."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "spark" if file.startswith("tests/spark/") else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """How tests are spread when there are several processes (-n)."""
    return _ByFile(config, log)


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[LocalCluster]:
    """A ZooKeeper without bookies. Leave it running; tests that kill one start their own."""
    with LocalCluster(bookies=0) as cluster:
        yield cluster


@pytest.fixture
def metadata_uri(zookeeper: LocalCluster) -> str:
    """A metadata URI with a root of its own on the shared ZooKeeper."""
    return f"{zookeeper.uri}/test-{next(_roots)}"
