"""Makes the Python code of ``bookie.proto``: the one place that knows how (``make proto``)."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from tests.style.sources import ROOT

PROTO = "spark_ledger/wire/bookie.proto"
OUTPUTS = tuple(
    f"spark_ledger/wire/{name}"
    for name in ("bookie_pb2.py", "bookie_pb2.pyi", "bookie_pb2_grpc.py")
)


def pinned_version() -> str:
    """The grpcio-tools that the committed code is made with."""
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        name, _, pin = line.partition("==")
        if name == "grpcio-tools":
            return pin
    raise AssertionError("constraints.txt pins no grpcio-tools")


def generate(target: Path) -> None:
    """Write the generated files below ``target``."""
    installed = version("grpcio-tools")
    assert installed == pinned_version(), (
        f"grpcio-tools is {installed}, pinned is {pinned_version()}: run make venv"
    )
    outputs = [f"--{kind}_out={target}" for kind in ("python", "pyi", "grpc_python")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", *outputs, PROTO]
    subprocess.run(command, cwd=ROOT, check=True)


if __name__ == "__main__":
    generate(ROOT)
