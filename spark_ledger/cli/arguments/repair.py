"""Options of commands that make copies: how fast, and how long a lost bookie is waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import click

from spark_ledger.cli.arguments.amounts import DURATION_S, size_of
from spark_ledger.cli.arguments.settings import Command
from spark_ledger.limits import KIB
from spark_ledger.limits.repair import (
    LOST_BOOKIE_DELAY_S,
    REPAIR_BYTES_PER_S,
    REPAIR_SOURCE_BYTES_PER_S,
)

LOST_BOOKIE_DELAY: Final = click.option(
    "--lost-bookie-delay",
    type=DURATION_S,
    default=f"{LOST_BOOKIE_DELAY_S:g}s",
    show_default="5m",
    metavar="TIME",
    help="A bookie gone for so long is lost: its copies are made again on others.",
)


def rate_option(name: str) -> Callable[[Command], Command]:
    return click.option(
        name,
        type=size_of(KIB),
        default=str(REPAIR_BYTES_PER_S),
        show_default="32m",
        metavar="SIZE",
        help="Bytes per second that are copied at most.",
    )


def source_rate_option(name: str) -> Callable[[Command], Command]:
    return click.option(
        name,
        type=size_of(KIB),
        default=str(REPAIR_SOURCE_BYTES_PER_S),
        show_default="16m",
        metavar="SIZE",
        help="Bytes per second that are read from one bookie at most.",
    )
