"""Who a writer task is: query, run, batch, partition and attempt, from Spark's task context.

Spark passes none of this to ``write()``. The local properties of the task context carry it; their
names are Spark's own, undocumented and the same in 4.2 and 4.3, so a missing one is a clear error
and never a guess.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from spark_ledger.errors import ConfigurationError

QUERY_ID_PROPERTY: Final = "sql.streaming.queryId"
BATCH_ID_PROPERTY: Final = "streaming.sql.batchId"
RUN_ID_PROPERTY: Final = "spark.jobGroup.id"
"""A streaming query runs its jobs in a job group named by its run id."""


class TaskIdentity(NamedTuple):
    """A task attempt of one micro-batch of one run of a query."""

    query_id: str
    run_id: str
    batch_id: int
    partition: int
    attempt: int


def streaming_task(context: Any) -> TaskIdentity:
    """The identity of the running streaming task; ``context`` is ``TaskContext.get()``.

    Raises ConfigurationError when Spark does not tell it.
    """
    if context is None:
        raise ConfigurationError("the ledger sink writes inside Spark tasks only")
    query_id = _property(context, QUERY_ID_PROPERTY)
    batch_id = _property(context, BATCH_ID_PROPERTY)
    run_id = _property(context, RUN_ID_PROPERTY)
    if not batch_id.isdigit():
        raise ConfigurationError(
            f"the task property {BATCH_ID_PROPERTY} is {batch_id!r}, not a batch number: this "
            "version of Spark is not supported (pyspark 4.2 and 4.3 are)"
        )
    return TaskIdentity(
        query_id, run_id, int(batch_id), context.partitionId(), context.attemptNumber()
    )


def _property(context: Any, name: str) -> str:
    value = context.getLocalProperty(name)
    if not value:
        raise ConfigurationError(
            f"Spark did not set the task property {name}, without which a micro-batch cannot be "
            "written exactly once: this version of Spark is not supported (pyspark 4.2 and 4.3 are)"
        )
    return str(value)
