"""Figures of the sources stay on the right side of their bounds."""

from __future__ import annotations

import pytest

from tests.style.figures import ASSERTED, EXPLAINED, any_uses, assertions, explained_share

EXPLAINED_SHARE_MIN = 0.25
ASSERTIONS_MIN = 210
ANY_USES_MAX = 39


@pytest.mark.parametrize("folder", EXPLAINED)
def test_every_fourth_line_explains(folder: str) -> None:
    assert explained_share(folder) >= EXPLAINED_SHARE_MIN


def test_protocol_core_and_storage_assert_what_must_hold() -> None:
    assert assertions(ASSERTED) >= ASSERTIONS_MIN


def test_any_is_rare_in_product_code() -> None:
    uses = any_uses()
    assert len(uses) <= ANY_USES_MAX, "\n".join(uses)
