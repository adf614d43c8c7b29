"""The ``ledger`` command. It knows the public names only; what a command needs is loaded by it."""

from __future__ import annotations

from spark_ledger.cli.app import main

__all__ = ["main"]
