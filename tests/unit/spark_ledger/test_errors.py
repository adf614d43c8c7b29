"""The tree of errors: what a caller may conclude from each."""

from __future__ import annotations

import inspect
import pickle

import pytest

from spark_ledger import errors
from spark_ledger.errors import LedgerError

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, LedgerError)
]
every_class = pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)


@every_class
def test_error_pickles(kind: type[LedgerError]) -> None:
    copy = pickle.loads(pickle.dumps(kind("ledger 7: what to do")))
    assert type(copy) is kind and str(copy) == "ledger 7: what to do"


@every_class
def test_error_is_documented_and_in_the_tree(kind: type[LedgerError]) -> None:
    assert kind.__doc__
    assert errors.__doc__ is not None
    assert kind.__name__ in errors.__doc__


@every_class
def test_retryable_means_that_a_repeat_is_safe(kind: type[LedgerError]) -> None:
    assert not (kind.retryable and kind.outcome_unknown)
    assert kind.retryable == issubclass(kind, errors.RetryableError)


def test_unknown_outcomes() -> None:
    unknown = {kind.__name__ for kind in CLASSES if kind.outcome_unknown}
    assert unknown >= {
        "OutcomeUnknownError",
        "AddOutcomeUnknownError",
        "FencedError",
        "LedgerTakenOverError",
    }


def test_malformed_message_is_the_fault_of_the_sender() -> None:
    """Not of the caller (ConfigurationError), and not of a disk (CorruptionError)."""
    kind = errors.MalformedMessageError
    assert not issubclass(kind, errors.ConfigurationError | errors.CorruptionError)
    assert not kind.retryable and not kind.outcome_unknown


def test_add_given_up_at_close_is_of_both_families() -> None:
    """Callers look for either family."""
    assert issubclass(errors.AddOutcomeUnknownError, errors.OutcomeUnknownError)
    assert issubclass(errors.AddOutcomeUnknownError, errors.LedgerClosedError)
    assert issubclass(errors.LedgerTakenOverError, errors.FencedError)
    assert issubclass(errors.ReadBeyondConfirmedError, errors.NotFoundError)


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    """Each line of the tree stands below its parent."""
    assert errors.__doc__ is not None
    by_name = {kind.__name__: kind for kind in CLASSES}
    parents: list[type[LedgerError]] = []
    seen = set()
    for line in errors.__doc__.splitlines():
        name = next((word for word in line.split() if word in by_name), None)
        if name is None or not line.replace("│", " ").strip().startswith(("├", "└", "LedgerError")):
            continue
        depth = line.index(name) // 4
        parents = [*parents[:depth], by_name[name]]
        seen.add(name)
        if depth:
            assert issubclass(by_name[name], parents[depth - 1]), line
    assert seen == set(by_name)
