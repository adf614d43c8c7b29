"""Downloads the peers' jars from Maven Central into the cache, once."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from benchmarks.paths import CACHE
from spark_ledger.errors import ConfigurationError

FETCH_TIMEOUT_S = 900.0
_OUTPUT_LINES = 15
_EVERYTHING = "<exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"


@dataclass(frozen=True, slots=True)
class JarSet:
    """Artifacts (``group:artifact:version``) in one folder, with or without their dependencies."""

    folder: str
    artifacts: tuple[str, ...]
    with_dependencies: bool = True


BOOKKEEPER = JarSet("bookkeeper-4.17.2", ("org.apache.bookkeeper:bookkeeper-server:4.17.2",))
KAFKA = JarSet(
    "kafka-4.1.0",
    (
        "org.apache.kafka:kafka_2.13:4.1.0",
        "org.apache.kafka:kafka-tools:4.1.0",
        "org.slf4j:slf4j-simple:1.7.36",  # so that a broker that dies at its start says why
    ),
)
SPARK_KAFKA = JarSet(
    "spark-kafka-4.2.0",
    (
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        # Not every mirror has 4.2.0 of this one; any of 4.x works with the connector.
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "org.apache.kafka:kafka-clients:3.9.2",
        "org.apache.commons:commons-pool2:2.13.1",
    ),
    with_dependencies=False,
)


def require_java() -> None:
    """Raises ConfigurationError, saying what to install, unless Java, javac and Maven are there."""
    for program, package in (
        ("java", "openjdk-17-jdk-headless"),
        ("javac", "openjdk-17-jdk-headless"),
        ("mvn", "maven"),
    ):
        if shutil.which(program) is None:
            raise ConfigurationError(
                f"{program} is missing, and --peers needs it to fetch, build and run the peers: "
                f"apt install {package}, or run without --peers"
            )


def fetched(jars: JarSet) -> Path:
    """The folder with the jars, downloaded if necessary. Raises ConfigurationError if that
    fails."""
    folder = CACHE / "jars" / jars.folder
    if folder.is_dir():
        return folder
    require_java()
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    (partial / "pom.xml").write_text(_pom(jars))
    copy = ["dependency:copy-dependencies", f"-DoutputDirectory={partial}"]
    try:
        done = subprocess.run(
            ["mvn", "--batch-mode", "-q", "-f", str(partial / "pom.xml"), *copy],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigurationError(
            f"fetching {jars.folder} took more than {FETCH_TIMEOUT_S:g} s: "
            "check the network, or run without --peers"
        ) from error
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines()[:_OUTPUT_LINES]
        raise ConfigurationError(
            f"mvn could not fetch {jars.folder}: check the network, or run without --peers\n"
            + "\n".join(lines)
        )
    partial.rename(folder)
    return folder


def _pom(jars: JarSet) -> str:
    dependencies = []
    alone = "" if jars.with_dependencies else f"<exclusions>{_EVERYTHING}</exclusions>"
    for artifact in jars.artifacts:
        group, name, version = map(escape, artifact.split(":"))
        dependencies.append(
            f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
            f"<version>{version}</version>{alone}</dependency>"
        )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>benchmarks</groupId><artifactId>peers</artifactId><version>1</version>"
        f"<dependencies>{''.join(dependencies)}</dependencies></project>"
    )
