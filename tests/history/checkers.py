"""check_all: runs every checker over one history and the state after healing.

Checkers know the promises and nothing about the implementation: they see what clients asked, what
they were told, and what a fresh reader finds at the end. A ledger has one writer, so each checker
takes linear time. Only the state of a ledger needs a search for an order, over few calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tests.history import closing_checks, entry_checks, replica_checks, stream_checks
from tests.history.final import Final
from tests.history.model import History
from tests.history.violation import Violation
from tests.history.visibility_checks import dirty_read, last_confirmed, real_time

SAME_NAME_MAX = 10
"""How many violations of one name are kept: one bug often breaks thousands of entries."""

Checker = Callable[[History, Final], list[Violation]]

CHECKERS: tuple[Checker, ...] = (
    entry_checks.lost,
    entry_checks.phantom,
    entry_checks.divergence,
    entry_checks.order,
    entry_checks.hole,
    entry_checks.denied,
    real_time,
    closing_checks.close_disagreement,
    closing_checks.acknowledged_after_close,
    closing_checks.metadata_register,
    replica_checks.under_replicated,
    replica_checks.fragment_rules,
    stream_checks.lost_commit,
    stream_checks.duplicate_commit,
    stream_checks.phantom_commit,
    stream_checks.stream_order,
    stream_checks.stream_reads,
)


def check_all(history: History, final: Final, *, exact: bool = False) -> list[Violation]:
    """Every violation that any checker finds; empty if the history keeps all promises.

    ``exact``: events were recorded at the moment they happened, as in the simulator. Then an entry
    counts as confirmed only after its acknowledgement was recorded. A real process may be paused
    between being told and recording it.
    """
    found = [violation for checker in CHECKERS for violation in checker(history, final)]
    found += dirty_read(history, final, exact=exact)
    found += last_confirmed(history, final, exact=exact)
    return _limited(found)


def _limited(found: list[Violation]) -> list[Violation]:
    """Keep the first violations of each name, and say how many more there are."""
    totals = Counter((v.invariant, v.name) for v in found)
    seen: Counter[tuple[str, str]] = Counter()
    kept = []
    for violation in found:
        kind = (violation.invariant, violation.name)
        seen[kind] += 1
        if seen[kind] <= SAME_NAME_MAX:
            kept.append(violation)
    for (invariant, name), total in totals.items():
        if total > SAME_NAME_MAX:
            more = f"and {total - SAME_NAME_MAX} more of this kind"
            kept.append(Violation(invariant, name, more))
    return kept
