"""Who may import whom: the layers of the house as one table, checked against the parsed sources."""

from __future__ import annotations

import sys
from typing import NamedTuple

import pytest

from tests.style.sources import PRODUCT, imports, product_sources

VALUES = tuple(
    f"spark_ledger.{name}"
    for name in ("types", "errors", "limits", "runs", "bookie_api", "amounts")
)
PUBLIC = (*VALUES, "spark_ledger.config", "spark_ledger.tasks", "spark_ledger.version")
INTERFACE = "spark_ledger.metadata.base"
CONNECTOR_COMMON = (
    *(
        f"spark_ledger.{name}"
        for name in ("types", "errors", "limits", "amounts", "client", "stream", "spark.reports")
    ),
    *(
        f"connector.{name}"
        for name in ("option_parsers", "options", "retry", "schema", "sessions", "task_report")
    ),
    "connector.garbage",
    "connector.kafka_columns",
    "connector.sentences",
    "connector.several",
)

# What a pure module would need in order to wait, to look at the world, or to be nondeterministic.
IMPURE = frozenset(
    {
        "asyncio",
        "concurrent",
        "datetime",
        "io",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "queue",
        "random",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "ssl",
        "subprocess",
        "tempfile",
        "threading",
        "time",
        "uuid",
    }
)


class Rule(NamedTuple):
    """What the modules below one name may import.

    ``ours``: names in this repository, each with all below it. ``libraries``: top-level names of
    other people's packages. ``banned``: standard modules that are refused; the others are free.
    """

    ours: tuple[str, ...]
    libraries: frozenset[str] = frozenset()
    banned: frozenset[str] = frozenset()


def rule(*ours: str, libraries: str = "", banned: frozenset[str] | str = frozenset()) -> Rule:
    words = frozenset(banned.split()) if isinstance(banned, str) else banned
    return Rule(ours, frozenset(libraries.split()), words)


# The longest name that fits a module decides. A package may always import itself.
RULES = {
    # values: each may import those named before it
    "spark_ledger.version": rule(banned=IMPURE),
    "spark_ledger.errors": rule(banned=IMPURE),
    "spark_ledger.limits": rule(banned=IMPURE),
    "spark_ledger.types": rule("spark_ledger.errors", "spark_ledger.limits", banned=IMPURE),
    "spark_ledger.runs": rule(*VALUES, banned=IMPURE),
    "spark_ledger.bookie_api": rule(*VALUES, banned=IMPURE),
    "spark_ledger.amounts": rule("spark_ledger.limits", banned=IMPURE),
    "spark_ledger.config": rule(*VALUES, libraries="msgspec", banned="asyncio threading"),
    "spark_ledger.tasks": rule(),
    "spark_ledger.loop_watch": rule("spark_ledger.limits"),
    # the client library
    "spark_ledger.protocol": rule(*VALUES, banned=IMPURE),
    "spark_ledger.wire": rule(
        *VALUES, libraries="google google_crc32c msgspec", banned="asyncio threading"
    ),
    "spark_ledger.transport": rule(*PUBLIC, "spark_ledger.wire", libraries="grpc google"),
    "spark_ledger.metadata": rule(*PUBLIC, libraries="kazoo msgspec"),
    "spark_ledger.client": rule(
        *PUBLIC,
        "spark_ledger.protocol",
        "spark_ledger.wire",
        "spark_ledger.transport",
        "spark_ledger.metadata",
        libraries="msgspec pyarrow",
    ),
    # streams need the names of transactions (Check, Create, Put), never a store's implementation
    "spark_ledger.stream": rule(
        *PUBLIC, "spark_ledger.client", INTERFACE, libraries="pyarrow msgspec"
    ),
    "spark_ledger.keeper.decisions": rule(*VALUES, banned=IMPURE),
    "spark_ledger.keeper.gone": rule(*VALUES, banned=IMPURE),
    "spark_ledger.keeper": rule(
        *PUBLIC,
        "spark_ledger.client",
        "spark_ledger.stream",
        "spark_ledger.metadata",
        libraries="msgspec",
    ),
    "spark_ledger.repair.plan": rule(*VALUES, "spark_ledger.protocol", banned=IMPURE),
    "spark_ledger.repair.balance": rule(
        *VALUES, "spark_ledger.protocol", "spark_ledger.repair.plan", banned=IMPURE
    ),
    "spark_ledger.repair.holes": rule(*VALUES, "spark_ledger.repair.plan", banned=IMPURE),
    "spark_ledger.repair.lost": rule(*VALUES, banned=IMPURE),
    "spark_ledger.repair": rule(
        *PUBLIC,
        "spark_ledger.client",
        "spark_ledger.protocol",
        "spark_ledger.wire",
        "spark_ledger.transport",
        "spark_ledger.metadata",
        "spark_ledger.keeper.gone",
        "spark_ledger.keeper.passes",
        libraries="msgspec",
    ),
    # the watching of Spark's queries; reports are sent from the connector's tasks too
    "spark_ledger.spark": rule(
        "spark_ledger.types",
        "spark_ledger.errors",
        "spark_ledger.limits",
        libraries="pyspark msgspec",
    ),
    # the lab knows the protocol's machines and its own world; nobody but its commands knows the lab
    "spark_ledger.lab": rule(*VALUES, "spark_ledger.protocol"),
    "spark_ledger.lab.timelines": rule(*VALUES, "spark_ledger.lab", libraries="matplotlib"),
    "spark_ledger.cli": rule("spark_ledger", libraries="click rich msgspec pyarrow"),
    # spark_ledger/__init__.py, aio.py, and local/, which starts processes: all of the library
    "spark_ledger": rule("spark_ledger", libraries="msgspec"),
    # the connector sees the blocking client and streams; its read and write sides do not meet
    "connector.read": rule(*CONNECTOR_COMMON, libraries="pyspark pyarrow"),
    "connector.write": rule(*CONNECTOR_COMMON, libraries="pyspark pyarrow msgspec"),
    "connector": rule(
        *PUBLIC,
        "spark_ledger.client",
        "spark_ledger.stream",
        "spark_ledger.spark.reports",
        "spark_ledger.connect",
        libraries="pyspark pyarrow msgspec",
    ),
    # the bookie
    "bookie_server.core": rule(*VALUES, banned=IMPURE),
    "bookie_server.storage": rule(
        *VALUES,
        "spark_ledger.config",
        "bookie_server.core",
        libraries="lmdb msgspec google_crc32c",
        banned="asyncio",
    ),
    "bookie_server.watchers": rule(*VALUES, banned=IMPURE),
    "bookie_server.reads": rule(
        *VALUES, "bookie_server.core", "bookie_server.storage", banned="asyncio threading"
    ),
    "bookie_server.first_contact": rule(*VALUES, "bookie_server.core", banned=IMPURE),
    "bookie_server.waiting_adds": rule(*VALUES, "bookie_server.core", banned=IMPURE),
    "bookie_server.giving_back": rule(*VALUES, banned=IMPURE),
    "bookie_server.duplicates": rule(*VALUES, "bookie_server.storage", banned="asyncio threading"),
    "bookie_server.held_entries": rule(
        *VALUES, "bookie_server.duplicates", "bookie_server.storage", banned="asyncio"
    ),
    "bookie_server.bookie": rule(
        *VALUES,
        "spark_ledger.wire",
        "bookie_server.core",
        "bookie_server.storage",
        "bookie_server.first_contact",
        "bookie_server.giving_back",
        "bookie_server.held_entries",
        "bookie_server.reads",
        "bookie_server.waiting_adds",
        "bookie_server.watchers",
        banned="asyncio threading",
    ),
    "bookie_server.opening": rule(
        *VALUES, "bookie_server.bookie", "bookie_server.first_contact", "bookie_server.storage"
    ),
    "bookie_server.service": rule(
        *PUBLIC,
        "spark_ledger.wire",
        "bookie_server.core",
        "bookie_server.storage",
        "bookie_server.bookie",
        "bookie_server.config",
        libraries="grpc grpc_health google prometheus_client aiohttp msgspec",
    ),
    "bookie_server.collection": rule(
        *PUBLIC,
        "spark_ledger.metadata",
        "bookie_server.core",
        "bookie_server.giving_back",
        "bookie_server.storage",
        libraries="msgspec",
    ),
    # bookie_server/__main__.py, server.py, config.py: start-up, which knows every part
    "bookie_server": rule(
        *PUBLIC,
        "spark_ledger.keeper.nodes",
        "spark_ledger.loop_watch",
        "spark_ledger.metadata",
        "spark_ledger.repair.holes",
        "spark_ledger.repair.nodes",
        "spark_ledger.repair.plan",
        "spark_ledger.wire",
        "bookie_server",
        libraries="grpc msgspec",
    ),
}


def is_below(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def fault(module: str, imported: str) -> str | None:
    """Why ``module`` may not import ``imported``, or None if it may."""
    place = max((name for name in RULES if is_below(module, name)), key=len)
    allowed = RULES[place]
    top = imported.partition(".")[0]
    if imported == "spark_ledger":
        imported = "spark_ledger.connect"  # the one name of it that the connector may use
    if top in PRODUCT:
        itself = is_below(imported, place)
        if itself or any(is_below(imported, name) for name in allowed.ours):
            return None
        return f"{place} may not import {imported}"
    if top in sys.stdlib_module_names:
        return f"{place} must not use {top}" if top in allowed.banned else None
    return None if top in allowed.libraries else f"{place} may not use the library {top}"


MODULES = frozenset(source.module for source in product_sources())


def test_modules_import_only_what_their_layer_may() -> None:
    faults = [
        f"{source.path}:{line}: {why}"
        for source in product_sources()
        for line, imported in imports(source)
        if (why := fault(source.module, imported))
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("spark_ledger.protocol.append", "asyncio"),
        ("spark_ledger.protocol.append", "time.monotonic"),
        ("spark_ledger.protocol.append", "spark_ledger.metadata.base.MetadataStore"),
        ("spark_ledger.types", "spark_ledger.runs.EntryRun"),
        ("spark_ledger.transport.grpc_aio", "spark_ledger.protocol.append"),
        ("spark_ledger.client.machine_loop", "grpc"),
        ("spark_ledger.stream.commit", "kazoo.client"),
        ("spark_ledger.stream.commit", "spark_ledger.metadata.zookeeper.store"),
        ("spark_ledger.cli.app", "bookie_server.config"),
        ("connector.read.planner", "grpc.aio"),
        ("connector.read.task", "connector.write.task"),
        ("connector.write.writers", "connector.read.planner"),
        ("bookie_server.core.transitions", "os.path"),
        ("bookie_server.storage.journal.journal", "asyncio"),
        ("bookie_server.service.grpc_service", "spark_ledger.client"),
        ("bookie_server.storage.journal.journal", "bookie_server.bookie"),
    ],
)
def test_table_refuses(module: str, imported: str) -> None:
    assert module in MODULES
    assert fault(module, imported)


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("spark_ledger.protocol.append", "spark_ledger.protocol.quorum.write_set"),
        ("spark_ledger.protocol.append", "spark_ledger.runs.EntryRun"),
        ("spark_ledger.client.machine_loop", "spark_ledger.transport.base"),
        ("bookie_server.storage.index.base", "bookie_server.core.ledger_record"),
    ],
)
def test_table_allows(module: str, imported: str) -> None:
    assert module in MODULES
    assert fault(module, imported) is None


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    """Also not by an import inside a function: who needs whom has one direction."""
    known = {source.module for source in product_sources()}
    graph = {
        source.module: {module_of(name, known) for _line, name in imports(source)} - {None}
        for source in product_sources()
        if not source.is_package
    }
    while leaves := [module for module, needed in graph.items() if not needed & graph.keys()]:
        for module in leaves:
            del graph[module]
    assert not graph, f"these import each other, or one that does: {sorted(graph)}"


def module_of(imported: str, known: set[str]) -> str | None:
    """The module of ours that an imported name belongs to: the longest that fits."""
    parts = imported.split(".")
    names = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((name for name in names if name in known), None)
