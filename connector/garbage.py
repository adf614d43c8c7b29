"""Keeps the collections short that Spark makes its Python processes do after each call.

A process that Spark keeps for the next task calls ``gc.collect()`` after each one. It then looks at
every object that imports and the connection have left, some 50 ms of processor time, three times
in each micro-batch. They live as long as the process, so they are set aside.
"""

from __future__ import annotations

import gc
import os
from typing import Final, Literal

Role = Literal["prepare", "write", "commit", "plan", "read"]

_SET_ASIDE: Final[set[Role]] = set()
"""What this process has done for the first time. Each imports something of its own."""

_SPARK_KEEPS_PROCESSES: Final = "SPARK_REUSE_WORKER"
"""The variable by which Spark tells a Python process that it is kept, so that it collects."""


def set_aside(role: Role) -> None:
    """Have later collections leave out all that is there now, the first time in a role.

    Only in processes that Spark keeps. What is garbage already is collected before.
    """
    if role in _SET_ASIDE or not os.environ.get(_SPARK_KEEPS_PROCESSES):
        return
    _SET_ASIDE.add(role)
    gc.collect()
    gc.freeze()
