"""``python -m connector.compile_spark``: compiles the Python files that Spark's processes load.

Spark puts ``$SPARK_HOME/python/lib/pyspark.zip`` first on the path of each process that it
starts. That archive has sources only, and Python cannot keep what it compiles from an archive: each
process compiles the same files again. Once per machine or image, run by whoever may write there; an
interpreter of another version passes over what it cannot use.
"""

from __future__ import annotations

import argparse
import importlib.util
import marshal
import os
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from spark_ledger.errors import ConfigurationError, LedgerError


def archives(spark_home: str | None) -> list[Path]:
    """The archives of a Spark; of the one in this environment without a path.

    Raises ConfigurationError if there are none.
    """
    if not spark_home:
        found = importlib.util.find_spec("pyspark")
        if found is None or found.origin is None:
            raise ConfigurationError("no pyspark here: set SPARK_HOME, or give --spark-home")
        spark_home = str(Path(found.origin).parent)
    library = Path(spark_home) / "python" / "lib"
    paths = sorted(library.glob("py*.zip"))
    if not paths:
        raise ConfigurationError(f"{library} has no pyspark.zip: is {spark_home} a SPARK_HOME?")
    return paths


def compile_archive(path: Path) -> int:
    """Put the compiled form of each source beside it, unless it is there; how many it puts.

    The archive is replaced at once: a process that starts meanwhile sees the old or the new one.

    Raises OSError if it may not be written, ConfigurationError if it is no archive.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename: (info, archive.read(info)) for info in archive.infolist()}
    except zipfile.BadZipFile as error:
        raise ConfigurationError(f"{path} is damaged ({error}): install Spark again") from error
    compiled = {
        f"{name}c": _compiled(f"{path}/{name}", source)
        for name, (_, source) in members.items()
        if name.endswith(".py") and not _is_compiled(members.get(f"{name}c"), source)
    }
    if not compiled:
        return 0
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, (info, content) in members.items():
                if name not in compiled:
                    archive.writestr(info, content)
            for name, code in compiled.items():
                archive.writestr(name, code)
        new.chmod(path.stat().st_mode & 0o777)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    return len(compiled)


def _header(source: bytes) -> bytes:
    """What a ``.pyc`` begins with that is used whatever the time of its source says."""
    unchecked_hash = (0b01).to_bytes(4, "little")
    return importlib.util.MAGIC_NUMBER + unchecked_hash + importlib.util.source_hash(source)


def _is_compiled(member: tuple[zipfile.ZipInfo, bytes] | None, source: bytes) -> bool:
    return member is not None and member[1].startswith(_header(source))


def _compiled(name: str, source: bytes) -> bytes:
    return _header(source) + marshal.dumps(compile(source, name, "exec", dont_inherit=True))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Exit code 1 with one sentence if it cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m connector.compile_spark")
    parser.add_argument("--spark-home", default=os.environ.get("SPARK_HOME"), metavar="PATH")
    try:
        for path in archives(parser.parse_args(arguments).spark_home):
            print(f"{path}: {compile_archive(path)} files compiled")
    except LedgerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error}; run it as the owner of these files", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
