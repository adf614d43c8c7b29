"""Packaging keeps its word: dependencies declared, pins complete, Spark finds the data source."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys

from tests.style.sources import EVERYTHING, PRODUCT, ROOT, imports, sources

# Import name -> distribution, where they differ.
DISTRIBUTIONS = {
    "delta": "delta-spark",
    "google": "protobuf",
    "google_crc32c": "google-crc32c",
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
    "grpc_tools": "grpcio-tools",
    "prometheus_client": "prometheus-client",
    "py4j": "pyspark",
    "xdist": "pytest-xdist",
}


def declared() -> set[str]:
    """Distributions named in ``setup.py``."""
    text = (ROOT / "setup.py").read_text(encoding="utf-8")
    return set(re.findall(r'"([a-z0-9-]+)(?:>=|==|<)', text))


def pinned() -> set[str]:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    names = (line.partition("==")[0] for line in text.splitlines() if "==" in line)
    return {name.lower().replace("_", "-") for name in names}


def test_every_imported_library_is_declared() -> None:
    ours = {*EVERYTHING, "setuptools", "pyspark_ledger", "__main__"}
    libraries = {
        top: f"{source.path}:{line}"
        for source in sources()
        for line, name in imports(source)
        if (top := name.partition(".")[0]) not in sys.stdlib_module_names and top not in ours
    }
    names = declared()
    missing = {
        where: top for top, where in libraries.items() if DISTRIBUTIONS.get(top, top) not in names
    }
    assert not missing, f"not in setup.py: {missing}"


def test_every_declared_library_is_pinned() -> None:
    assert declared() - {"python", "setuptools"} <= pinned()


def test_spark_finds_the_data_source_by_name() -> None:
    """Spark lists the real files on sys.path; an import hook would stay unseen."""
    assert "pyspark_ledger" in {module.name for module in pkgutil.iter_modules()}


def test_discovery_module_never_raises() -> None:
    module = importlib.import_module("pyspark_ledger")
    assert not hasattr(module, "no_such_name")


def test_every_product_package_is_installed_with_its_types() -> None:
    assert all((ROOT / package / "py.typed").exists() for package in PRODUCT)
