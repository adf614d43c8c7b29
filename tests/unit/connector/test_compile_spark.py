"""``connector.compile_spark``: Python processes find compiled files in Spark's archives."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from connector.compile_spark import archives, main
from spark_ledger.errors import ConfigurationError

PACKAGE = "compiled_by_test"
FILES = {
    f"{PACKAGE}/__init__.py": "from . import part",
    f"{PACKAGE}/part.py": "WHERE = __file__",
    f"{PACKAGE}/error-classes.json": "{}",
}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "python" / "lib" / "pyspark.zip"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as written:
        for name, text in FILES.items():
            written.writestr(name, text)
    return path


def imported_from(archive: Path) -> str:
    """Which file of the archive a new process takes for the module."""
    done = subprocess.run(
        [sys.executable, "-c", f"import {PACKAGE}; print({PACKAGE}.part.WHERE)"],
        env={**os.environ, "PYTHONPATH": str(archive)},
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(done.stdout.strip()).name


def test_a_process_takes_the_compiled_file(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert imported_from(archive) == "part.py", "as Spark comes"
    assert main(["--spark-home", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{archive}: 2 files compiled\n"
    assert imported_from(archive) == "part.pyc"
    with zipfile.ZipFile(archive) as written:
        assert {name: written.read(name).decode() for name in FILES} == FILES, "nothing is lost"
    assert list(archive.parent.iterdir()) == [archive], "nothing is left beside it"


def test_a_second_time_changes_nothing(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--spark-home", str(tmp_path)])
    before = archive.stat()
    capsys.readouterr()
    assert main(["--spark-home", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{archive}: 0 files compiled\n"
    assert archive.stat().st_ino == before.st_ino


def test_file_of_another_interpreter_is_passed_over_and_replaced(
    archive: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(archive, "a") as written:
        written.writestr(f"{PACKAGE}/part.pyc", b"\0" * 16 + b"no code")
    assert imported_from(archive) == "part.py", "another version still runs"
    assert main(["--spark-home", str(tmp_path)]) == 0
    assert imported_from(archive) == "part.pyc"
    with zipfile.ZipFile(archive) as written:
        code = written.read(f"{PACKAGE}/part.pyc")
        assert len(written.namelist()) == len(set(written.namelist()))
    assert code.startswith(importlib.util.MAGIC_NUMBER)


def test_what_cannot_be_done_is_one_sentence(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--spark-home", str(tmp_path / "python")]) == 1
    assert capsys.readouterr().err.startswith("error: ")
    archive.write_bytes(b"no archive")
    assert main(["--spark-home", str(tmp_path)]) == 1
    assert "no archive" not in (said := capsys.readouterr().err)
    assert said.count("\n") == 1 and str(archive) in said


def test_archive_keeps_who_may_read_it(archive: Path, tmp_path: Path) -> None:
    """Spark's processes may run as another user than the one that installed it."""
    for mode in (0o644, 0o444, 0o600):
        archive.chmod(0o644)
        with zipfile.ZipFile(archive, "a") as written:
            written.writestr(f"{PACKAGE}/m{mode}.py", "")
        archive.chmod(mode)
        assert main(["--spark-home", str(tmp_path)]) == 0
        assert archive.stat().st_mode & 0o777 == mode


def test_archive_that_cannot_be_replaced_leaves_nothing_beside_it(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_given: object, **_named: object) -> None:
        raise OSError(28, "No space left on device")

    before = archive.read_bytes()
    monkeypatch.setattr(Path, "replace", full)
    assert main(["--spark-home", str(tmp_path)]) == 1
    assert list(archive.parent.iterdir()) == [archive] and archive.read_bytes() == before


def test_source_that_is_another_one_now_is_compiled_again(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python takes a compiled file here without a look at its source: Spark was patched."""
    main(["--spark-home", str(tmp_path)])
    with zipfile.ZipFile(archive) as written:
        members = {name: written.read(name) for name in written.namelist()}
    members[f"{PACKAGE}/part.py"] = b"WHERE = 'patched'"
    with zipfile.ZipFile(archive, "w") as written:
        for name, content in members.items():
            written.writestr(name, content)
    assert imported_from(archive) == "part.pyc", "the former one"
    capsys.readouterr()
    assert main(["--spark-home", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{archive}: 1 files compiled\n"
    assert imported_from(archive) == "patched"


def test_archives_are_those_of_spark_and_of_py4j_beside_it(archive: Path, tmp_path: Path) -> None:
    other = archive.with_name("py4j-0.10.9.9-src.zip")
    for path in (other, archive.with_name("notes.zip"), archive.with_name("pyspark.zip.old")):
        path.write_bytes(archive.read_bytes())
    assert archives(str(tmp_path)) == [other, archive]


def test_spark_of_the_environment_is_compiled_if_no_other_is_named(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[SimpleNamespace | None] = [SimpleNamespace(origin=str(tmp_path / "__init__.py"))]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found[0])
    assert archives(None) == archives("") == [archive]
    for found[0] in (None, SimpleNamespace(origin=None)):
        with pytest.raises(ConfigurationError, match="no pyspark here: set SPARK_HOME"):
            archives(None)
