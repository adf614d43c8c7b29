"""Compiles the Java drivers, once for each version of their sources."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from benchmarks.paths import CACHE
from benchmarks.peers.jars import require_java
from spark_ledger.errors import ConfigurationError

SOURCES = Path(__file__).parent / "java"


def compiled(driver: str, jars: Path) -> str:
    """The class path that runs ``driver``, compiled against ``jars`` if necessary."""
    sources = [SOURCES / "Load.java", SOURCES / f"{driver}.java"]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    classes = CACHE / "classes" / f"{driver}-{digest}"
    if not classes.is_dir():
        require_java()
        partial = classes.with_name(classes.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        done = subprocess.run(
            ["javac", "-cp", f"{jars}/*", "-d", str(partial), *map(str, sources)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise ConfigurationError(f"{driver} does not compile:\n{done.stderr}")
        partial.rename(classes)
    return f"{classes}:{jars}/*"
