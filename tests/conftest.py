"""Fixtures for every test: one real ZooKeeper per session, started when first asked for."""

from __future__ import annotations

import gc
import itertools
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from spark_ledger.local import LocalCluster
from tests import left_open
from tests.effort import ONLY_IN_PROOF

left_open.install()

_roots = itertools.count()

# How long one example takes says how busy the machine is, and nothing of the code.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


def pytest_configure() -> None:
    """Restore Ctrl-C, which a shell script makes its background jobs and their children ignore."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_LONGEST_FIRST = ("spark", "chaos", "sim", "mutants", "fuzz", "crash", "exhaustive", "integration")
"""Folders in the order in which the processes of `make test` begin them, slowest first."""


_REAL = ("chaos", "hostile", "integration", "spark")
"""Folders whose tests share processes, and end them when all are done."""


def _folder(item: pytest.Item | pytest.Module) -> str:
    return item.path.relative_to(Path(__file__).parent).parts[0]


@pytest.hookimpl(tryfirst=True)  # before -m looks at marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the slowest, and leave tests that are marked ``proof`` to ``make proof``.

    Whoever names a test, or selects by -k or -m, gets exactly that.
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
    """Tests that share fixtures run in one process: those of a file, and all tests of Spark."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "spark" if file.startswith("tests/spark/") else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """How tests are spread when there are several processes (-n)."""
    return _ByFile(config, log)


@pytest.fixture(scope="module", autouse=True)
def small_heap(request: pytest.FixtureRequest) -> Iterator[None]:
    """What earlier files left is not looked through again: with it a full collection takes a
    second, and some tests need one. What is collected may have something to say."""
    gc.freeze()
    failed = request.session.testsfailed
    yield
    gc.collect()
    tests = [item for item in request.session.items if item.path == request.node.path]
    marks = [mark for item in tests for mark in item.iter_markers("leaves_open")]
    left = left_open.unexcused(left_open.late(), marks)
    if left and request.session.testsfailed == failed and _folder(request.node) not in _REAL:
        pytest.fail("left open by a test of this file: " + "; ".join(left), pytrace=False)


@pytest.fixture(autouse=True)
def nothing_left_open(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the product opened under a test that passed has ended; see ``tests/left_open.py``."""
    if _folder(request.node) in _REAL:
        yield
        left_open.forget()
        return
    failed = request.session.testsfailed
    before = left_open.begin()
    yield
    marks = list(request.node.iter_markers("leaves_open"))
    leaves_thread = any("thread" in mark.args for mark in marks)
    found = left_open.end(before, waits=not leaves_thread)
    left = left_open.unexcused(found, marks)
    if left and request.session.testsfailed == failed:
        pytest.fail("left open: " + "; ".join(left), pytrace=False)


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[LocalCluster]:
    """A ZooKeeper without bookies. Leave it running; tests that kill one start their own."""
    with LocalCluster(bookies=0) as cluster:
        yield cluster


@pytest.fixture
def metadata_uri(zookeeper: LocalCluster) -> str:
    """A metadata URI with a root of its own on the shared ZooKeeper."""
    return f"{zookeeper.uri}/test-{next(_roots)}"
