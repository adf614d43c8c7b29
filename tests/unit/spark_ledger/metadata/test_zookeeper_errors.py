"""What each refusal of ZooKeeper means to a caller."""

from __future__ import annotations

import pytest
from kazoo import exceptions as kz

from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    LedgerError,
    MetadataUnavailableError,
    NotFoundError,
    OutcomeUnknownError,
    UnauthorizedError,
)
from spark_ledger.metadata.zookeeper.errors import translated


@pytest.mark.parametrize("action", ["read", "create", "put", "delete", "transaction"])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (kz.NoNodeError(), NotFoundError),
        (kz.NodeExistsError(), ConflictError),
        (kz.BadVersionError(), ConflictError),
        (kz.NotEmptyError(), ConflictError),
        (kz.NoAuthError(), UnauthorizedError),
        (kz.AuthFailedError(), UnauthorizedError),
        (kz.InvalidACLError(), UnauthorizedError),
        (kz.NoChildrenForEphemeralsError(), ConfigurationError),
        (kz.BadArgumentsError(), ConfigurationError),
    ],
    ids=lambda value: type(value).__name__,
)
def test_refusal_means_the_same_for_each_action(
    error: Exception, kind: type[LedgerError], action: str
) -> None:
    found = translated(error, "a/b", action)
    assert type(found) is kind and "'a/b'" in str(found)


@pytest.mark.parametrize("error", [kz.MarshallingError("odd"), kz.SystemZookeeperError("odd")])
def test_failure_that_says_nothing_may_be_a_write_and_is_no_read(error: Exception) -> None:
    assert type(translated(error, "a", "read")) is MetadataUnavailableError
    for action in ("create", "put", "delete", "transaction"):
        found = translated(error, "a", action)
        assert type(found) is OutcomeUnknownError
        assert str(found) == (
            f"metadata {action} of 'a': ZooKeeper says odd; it may or may not have happened"
        )
    assert "ZooKeeper says MarshallingError" in str(translated(kz.MarshallingError(), "a", "read"))
