"""Which directories may serve, and what a running bookie is, by the cluster's cookie."""

from __future__ import annotations

import pytest

from bookie_server.core.identity import (
    DirectoryStart,
    KnownStart,
    Standing,
    check_places,
    check_starts,
    is_unresolved,
    next_counter,
    next_nonce,
    standing,
)
from spark_ledger.errors import ConfigurationError
from spark_ledger.types import BookieStart, DirectoryPlace

ONE, TWO, OTHER, THREE = (
    BookieStart(1, "a"),
    BookieStart(2, "b"),
    BookieStart(2, "x"),
    BookieStart(3, "c"),
)
HERE = DirectoryPlace("/j", 10, 100, 11, 101)


def directory(
    current: BookieStart | None,
    pending: BookieStart | None = None,
    *,
    place: DirectoryPlace = HERE,
    noted: DirectoryPlace | None = HERE,
) -> DirectoryStart:
    return DirectoryStart(place, noted, current, pending)


@pytest.mark.parametrize(
    ("known", "known_directory"),
    [
        (KnownStart(None, is_confirmed=True), directory(None)),
        (KnownStart(None, is_confirmed=True), directory(None, ONE)),
        (KnownStart(TWO, is_confirmed=True), directory(TWO)),
        (KnownStart(TWO, is_confirmed=True), directory(TWO, THREE)),
        (KnownStart(TWO, is_confirmed=False), directory(TWO)),
        (KnownStart(TWO, is_confirmed=False), directory(ONE, TWO)),
        (KnownStart(ONE, is_confirmed=False), directory(None, ONE)),
    ],
)
def test_directory_that_knows_the_last_start_may_serve(
    known: KnownStart, known_directory: DirectoryStart
) -> None:
    check_starts("b", known, [directory(known.start), known_directory])


@pytest.mark.parametrize("known", [TWO, None])
@pytest.mark.parametrize(
    "directories",
    [
        [directory(THREE), directory(THREE)],
        [directory(THREE), directory(THREE, BookieStart(4, "d"))],
        [directory(THREE), directory(TWO, THREE)],
        [directory(TWO, THREE), directory(THREE)],
        [directory(OTHER), directory(OTHER)],
        [directory(TWO, THREE), directory(TWO, THREE)],
    ],
)
def test_directories_of_one_start_may_serve_a_restored_cluster(
    known: BookieStart | None, directories: list[DirectoryStart]
) -> None:
    """Also if their last start was interrupted before the backup came back."""
    check_starts("b", KnownStart(known, is_confirmed=True, accepts_newer=True), directories)


@pytest.mark.parametrize("known", [TWO, None])
@pytest.mark.parametrize(
    ("newest", "older", "message"),
    [
        (directory(THREE), directory(TWO), "older copy: it knows start 2, and /new start 3"),
        (directory(THREE), directory(TWO, BookieStart(3, "z")), "older copy: it knows start 2"),
        (directory(TWO, THREE), directory(ONE), "is an older copy: it knows start 1"),
        (directory(THREE), directory(BookieStart(3, "z")), "its start 3 is not that of /"),
        (directory(THREE), directory(None), "knows no start"),
    ],
)
def test_directory_that_is_older_than_another_is_refused_whatever_the_cluster_accepts(
    known: BookieStart | None, newest: DirectoryStart, older: DirectoryStart, message: str
) -> None:
    """What was acknowledged in between is missing in it, and would be denied."""
    newest = newest._replace(place=HERE._replace(path="/new"))
    accepting = KnownStart(known, is_confirmed=True, accepts_newer=True)
    for directories in ([newest, older], [older, newest]):
        with pytest.raises(ConfigurationError, match=message):
            check_starts("b", accepting, directories)


@pytest.mark.parametrize(
    ("known", "refused", "message"),
    [
        (
            KnownStart(THREE, is_confirmed=True),
            directory(TWO),
            "/j of bookie b is an older copy: it knows start 2, and the cluster start 3",
        ),
        (
            KnownStart(TWO, is_confirmed=True),
            directory(ONE, TWO),
            "older copy: it knows start 1, and the cluster start 2",
        ),
        (
            KnownStart(TWO, is_confirmed=False),
            directory(ONE, OTHER),
            "older copy",
        ),
        (
            KnownStart(TWO, is_confirmed=True),
            directory(OTHER),
            "is a copy: its start 2 is not the one that the cluster knows",
        ),
        (
            KnownStart(ONE, is_confirmed=True),
            directory(None),
            "knows no start of bookie b, and the cluster knows start 1: it is an older copy",
        ),
        (
            KnownStart(ONE, is_confirmed=True),
            directory(None, ONE),
            "knows no start",
        ),
        (
            KnownStart(TWO, is_confirmed=True),
            directory(THREE),
            "knows start 3, and the cluster only start 2: ZooKeeper was restored .*"
            "`ledger cluster restored`",
        ),
        (
            KnownStart(None, is_confirmed=True),
            directory(ONE),
            "knows start 1, and the cluster only start 0: ZooKeeper was restored",
        ),
        (
            KnownStart(THREE, is_confirmed=True, accepts_newer=True),
            directory(TWO),
            "older copy",
        ),
    ],
)
def test_directory_that_does_not_is_refused(
    known: KnownStart, refused: DirectoryStart, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_starts("b", known, [directory(known.start), refused])


def moved(**changes: object) -> DirectoryPlace:
    return HERE._replace(**changes)  # type: ignore[arg-type]


def known_in(*places: DirectoryPlace, accepts_newer: bool = False) -> KnownStart:
    return KnownStart(TWO, is_confirmed=True, places=places, accepts_newer=accepts_newer)


@pytest.mark.parametrize(
    ("known", "now", "noted"),
    [
        (known_in(), HERE, HERE),
        (known_in(HERE), HERE, HERE),
        (known_in(), HERE, None),
        (known_in(moved(born_ns=0)), HERE, moved(cookie_born_ns=0)),
        (known_in(HERE), moved(born_ns=0, cookie_born_ns=0), HERE),
        (known_in(moved(path="/old"), accepts_newer=True), HERE, HERE),
    ],
)
def test_directory_where_it_was_may_serve(
    known: KnownStart, now: DirectoryPlace, noted: DirectoryPlace | None
) -> None:
    check_places("b", known, [directory(TWO, place=now, noted=noted)], ["/j"])


@pytest.mark.parametrize("field", ["inode", "born_ns", "cookie_inode", "cookie_born_ns"])
def test_directory_that_was_copied_into_place_is_refused(field: str) -> None:
    now = moved(**{field: 77})
    for known, noted in ((known_in(), HERE), (known_in(HERE), now)):
        with pytest.raises(ConfigurationError, match=r"/j is not the one .* copied, or restored"):
            check_places("b", known, [directory(TWO, place=now, noted=noted)], ["/j"])


def test_directory_elsewhere_is_refused() -> None:
    now = moved(path="/copy")
    for known, noted in ((known_in(), HERE), (known_in(HERE), now)):
        with pytest.raises(ConfigurationError, match=r"/copy was /j when .* `ledger bookie relo"):
            check_places("b", known, [directory(TWO, place=now, noted=noted)], ["/j"])
    with pytest.raises(ConfigurationError, match="/copy was made as /j for bookie b"):
        check_places("b", known_in(), [directory(None, place=now, noted=None)], ["/j"])


def test_pending_start_that_the_cluster_does_not_know_is_unresolved() -> None:
    known = KnownStart(TWO, is_confirmed=False)
    assert not is_unresolved(known, [directory(TWO), directory(ONE, TWO)])
    assert is_unresolved(known, [directory(TWO), directory(TWO, THREE)])


def test_next_start_is_above_all_that_anybody_noted() -> None:
    nothing = KnownStart(None, is_confirmed=True)
    assert next_counter(nothing, [directory(None)]) == 1
    assert next_counter(nothing, [directory(None), directory(None, THREE)]) == 4
    assert next_counter(nothing, [directory(None, THREE), directory(None)]) == 4
    assert next_counter(KnownStart(TWO, is_confirmed=True), [directory(TWO, THREE)]) == 4
    assert next_counter(KnownStart(THREE, is_confirmed=True), [directory(TWO)]) == 4


@pytest.mark.parametrize(
    ("own", "there", "verdict"),
    [
        (TWO, TWO, Standing.OURS),
        (None, None, Standing.OURS),
        (TWO, OTHER, Standing.REPLACED),
        (TWO, THREE, Standing.REPLACED),
        (None, ONE, Standing.REPLACED),
        (TWO, ONE, Standing.CLUSTER_IS_OLDER),
        (TWO, None, Standing.CLUSTER_IS_OLDER),
    ],
)
def test_running_bookie_is_replaced_by_a_later_start_only(
    own: BookieStart | None, there: BookieStart | None, verdict: Standing
) -> None:
    assert standing(own, KnownStart(there, is_confirmed=True)) is verdict


def test_running_bookie_without_a_cookie_is_not_replaced() -> None:
    assert standing(TWO, None) is Standing.CLUSTER_IS_OLDER
    assert standing(None, None) is Standing.CLUSTER_IS_OLDER


def test_directory_behind_one_that_is_newer_is_checked_as_well() -> None:
    """A restored cluster accepts what is newer, of all directories together."""
    known = KnownStart(TWO, is_confirmed=True, accepts_newer=True)
    for first in (directory(THREE), directory(TWO), directory(OTHER)):
        with pytest.raises(ConfigurationError, match="is an older copy"):
            check_starts("b", known, [first, directory(ONE)])


EARLIER, ANEW = BookieStart(2, "old-1"), BookieStart(4, "new-2")


@pytest.mark.parametrize("counter", [1, 2, 3])
@pytest.mark.parametrize("accepts_newer", [False, True])
def test_bookie_that_was_formatted_since_the_backup_is_not_the_one_of_the_backup(
    counter: int, *, accepts_newer: bool
) -> None:
    """Whatever its number: the other one had entries that it never had."""
    known = KnownStart(EARLIER, is_confirmed=True, accepts_newer=accepts_newer)
    here = BookieStart(counter, "new-2")
    with pytest.raises(ConfigurationError, match=r"`ledger bookies decommission b`.*relocate"):
        check_starts("b", known, [directory(EARLIER), directory(here)])
    assert standing(here, known) is Standing.REPLACED


@pytest.mark.parametrize("there", [BookieStart(2, "a"), BookieStart(2, "new-1"), None])
def test_earlier_start_of_this_bookie_or_of_an_older_program_is_no_other_bookie(
    there: BookieStart | None,
) -> None:
    known = KnownStart(there, is_confirmed=True, accepts_newer=True)
    check_starts("b", known, [directory(ANEW)])
    assert standing(ANEW, known) is Standing.CLUSTER_IS_OLDER
    check_starts("b", known, [directory(BookieStart(4, "of an older program"))])


@pytest.mark.parametrize("accepts_newer", [False, True])
def test_bookie_that_was_formatted_since_this_one_left_is_another_before_its_first_start(
    *, accepts_newer: bool
) -> None:
    """Its cookie has no start yet, as after a restore: but the letters of another format."""
    formatted = KnownStart(None, is_confirmed=True, accepts_newer=accepts_newer, made_as="made")
    with pytest.raises(ConfigurationError, match="is of another bookie than"):
        check_starts("b", formatted, [directory(ANEW)])
    assert standing(ANEW, formatted, "new") is Standing.REPLACED
    assert standing(None, formatted, "new") is Standing.REPLACED, "on a full disk it noted no start"
    own = formatted._replace(made_as="new")
    assert standing(ANEW, own, "new") is Standing.CLUSTER_IS_OLDER
    assert standing(None, own, "new") is Standing.OURS
    assert standing(TWO, formatted) is Standing.CLUSTER_IS_OLDER, "an older program's do not tell"


@pytest.mark.parametrize(
    ("known", "here", "nonce"),
    [
        (None, directory(None), "made-t"),
        (TWO, directory(TWO), "made-t"),
        (EARLIER, directory(EARLIER), "old-t"),
        (None, directory(ANEW), "new-t"),
        (TWO, directory(ANEW), "new-t"),
        (None, directory(None, ANEW), "new-t"),
        (EARLIER, directory(TWO, EARLIER), "old-t"),
        (EARLIER, directory(None), "old-t"),
    ],
)
def test_all_starts_of_a_bookie_have_the_letters_of_its_first_one(
    known: BookieStart | None, here: DirectoryStart, nonce: str
) -> None:
    cookie = KnownStart(known, is_confirmed=True)
    assert next_nonce(cookie, [directory(None), here], "made", "t") == nonce


def test_bookie_is_the_same_one_behind_a_start_of_an_older_program() -> None:
    """Which was started between two upgrades, and notes no letters: the backup is of before."""
    starts = [BookieStart(5, "5f")]
    for nonce in (None, "77", None):
        known = KnownStart(starts[-1], is_confirmed=True)
        new = nonce or next_nonce(known, [directory(known.start)], "made", f"t{len(starts)}")
        starts.append(BookieStart(starts[-1].counter + 1, new))
    backup = KnownStart(starts[1], is_confirmed=True, accepts_newer=True)
    assert standing(starts[-1], backup) is Standing.CLUSTER_IS_OLDER
    check_starts("b", backup, [directory(starts[-1])])
