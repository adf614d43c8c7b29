"""kazoo's exceptions, translated into ours."""

from __future__ import annotations

from kazoo import exceptions as kz
from kazoo.handlers.threading import KazooTimeoutError

from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    LedgerError,
    MetadataUnavailableError,
    NotFoundError,
    OutcomeUnknownError,
    UnauthorizedError,
)

LOST = (
    kz.ConnectionLoss,
    kz.SessionExpiredError,
    kz.SessionMovedError,
    kz.ConnectionClosedError,
    kz.OperationTimeoutError,
    KazooTimeoutError,
    TimeoutError,
)
"""The answer did not arrive: a write may or may not have happened."""


def unknown(action: str, path: str, why: str) -> OutcomeUnknownError:
    """The error of a write that may or may not have happened."""
    return OutcomeUnknownError(
        f"metadata {action} of {path!r}: {why}; it may or may not have happened"
    )


def translated(error: Exception, path: str, action: str) -> LedgerError:
    """What a server's refusal means to a caller. Nothing of kazoo goes further up."""
    match error:
        case kz.NoNodeError():
            return NotFoundError(f"metadata node {path!r}, or its parent, does not exist")
        case kz.NodeExistsError():
            return ConflictError(f"metadata node {path!r} exists already")
        case kz.BadVersionError():
            return ConflictError(f"metadata node {path!r} does not have the expected version")
        case kz.NotEmptyError():
            return ConflictError(f"metadata node {path!r} has children")
        case kz.NoAuthError() | kz.AuthFailedError() | kz.InvalidACLError():
            return UnauthorizedError(f"metadata {action} of {path!r}: not allowed to this user")
        case kz.NoChildrenForEphemeralsError():
            return ConfigurationError(
                f"metadata node {path!r}: an ephemeral node cannot have children"
            )
        case kz.BadArgumentsError():
            return ConfigurationError(f"metadata {action} of {path!r}: ZooKeeper refuses the path")
    reason = str(error) or type(error).__name__
    if action == "read":
        return MetadataUnavailableError(f"metadata read of {path!r}: ZooKeeper says {reason}")
    return unknown(action, path, f"ZooKeeper says {reason}")
