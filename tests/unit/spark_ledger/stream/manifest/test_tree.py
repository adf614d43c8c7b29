"""The tree of manifests: arithmetic that holds for every number of commits."""

from __future__ import annotations

import pytest

from spark_ledger.stream.manifest.tree import (
    SINKS_PER_POINTER_MAX,
    ManifestRoot,
    PagePointer,
    SinkSpan,
    empty_root,
    index_pointer,
    leaf_pointer,
)
from spark_ledger.stream.model import Commit


def commit(number: int, sink_id: str = "q", transaction_id: int | None = None) -> Commit:
    transaction = number if transaction_id is None else transaction_id
    return Commit(number, 1000 + number, 2 * number, (), sink_id, transaction, "", number, number)


def grown(commits: int, leaf: int = 2, fan_out: int = 3) -> ManifestRoot:
    """The root after so many commits, each leaf in a ledger named after its first commit."""
    root = ManifestRoot("id", (), leaf, fan_out)
    while root.sealed + leaf <= commits:
        first = root.sealed
        members = [commit(number) for number in range(first, first + leaf)]
        root = root.with_leaves([leaf_pointer(first, 0, members)])
        while (level := root.level_to_merge()) is not None:
            pages = [p.pointer for p in root.pages() if p.level == level][:fan_out]
            root = root.merged(level, index_pointer(pages[0].ledger_id, level + 1, pages))
    return root


@pytest.mark.parametrize("commits", [0, 1, 2, 5, 6, 17, 18, 19, 54, 100, 163])
def test_page_of_every_sealed_commit_covers_it(commits: int) -> None:
    root = grown(commits)
    assert root.sealed == commits // 2 * 2
    assert all(len(pages) < root.fan_out for pages in root.levels)
    pages = root.pages()
    for number in range(root.sealed):
        page = root.page_of(number)
        assert page in pages
        assert page.first <= number < page.first + root.span(page.level)
        assert page.pointer.first_segment == 2 * page.first, "what its first commit says"
    ends = [page.first + root.span(page.level) for page in pages]
    assert [page.first for page in pages] == [0, *ends[:-1]][: len(pages)], "without a gap"
    with pytest.raises(AssertionError, match="not sealed"):
        root.page_of(root.sealed)


def test_a_million_commits_are_two_pages_away() -> None:
    pointer = PagePointer(1, 0, 0, 0, 0, 0, ())
    root = empty_root("id")._replace(levels=((pointer,) * 99, (pointer,) * 99, (pointer,)))
    assert root.sealed == 99 * 100 + 99 * 10_000 + 1_000_000
    assert root.page_of(0).level == 2
    assert root.page_of(1_000_000).level == 1
    assert root.page_of(root.sealed - 1) == (root.sealed - 100, 0, pointer)


def test_children_of_a_page_follow_one_another() -> None:
    root = grown(18)
    (page,) = root.pages()
    below = [page.pointer] * 3
    assert [(c.first, c.level) for c in root.children(page, below)] == [(0, 1), (6, 1), (12, 1)]


def test_pointer_names_the_transactions_of_a_few_sinks() -> None:
    members = [commit(0, "a", 5), commit(1, "b", -1), commit(2, "a", 9), commit(3, "b", 0)]
    leaf = leaf_pointer(7, 3, members)
    assert leaf == PagePointer(7, 3, 0, 1000, 0, 0, (SinkSpan("a", 5, 9), SinkSpan("b", -1, 0)))
    later = leaf_pointer(8, 0, [commit(4, "a", 10), commit(5, "c", 2)])
    above = index_pointer(9, 1, [leaf, later])
    assert above.sinks == (SinkSpan("a", 5, 10), SinkSpan("b", -1, 0), SinkSpan("c", 2, 2))
    assert (above.ledger_id, above.entry_id, above.first_segment) == (9, 1, 0)
    assert above.may_hold("a", 7) and above.may_hold("a", 4) and above.may_hold("a", 10)
    assert not above.may_hold("a", 11) and not above.may_hold("d", 0)
    crowd = [commit(n, f"s{n}") for n in range(SINKS_PER_POINTER_MAX + 1)]
    many = leaf_pointer(7, 3, crowd)
    assert many.sinks is None and many.may_hold("d", 0), "anything may be there"
    assert leaf_pointer(7, 3, crowd[1:]).sinks is not None
    assert index_pointer(9, 1, [leaf, many]).sinks is None
    assert index_pointer(9, 1, [many, leaf]).sinks is None


def test_ledgers_are_those_that_the_root_names() -> None:
    assert grown(4).ledgers() == {0, 2}
    assert grown(8).ledgers() == {0, 6}
