"""Checks of payloads by their bytes, and errors that are raised more than once."""

from __future__ import annotations

import pytest

from spark_ledger.client.payloads import check_payload, copy_error
from spark_ledger.errors import EntryTooLargeError, MetadataUnavailableError
from spark_ledger.limits.entries import ENTRY_PAYLOAD_BYTES_MAX


def test_view_of_wide_items_is_as_large_as_its_bytes() -> None:
    """Its length counts items: eight times the bound would be sealed, and refused by bookies."""
    numbers = memoryview(bytes(ENTRY_PAYLOAD_BYTES_MAX + 8)).cast("Q")
    with pytest.raises(EntryTooLargeError, match=f"of {ENTRY_PAYLOAD_BYTES_MAX + 8} bytes"):
        check_payload(numbers)  # type: ignore[arg-type]
    assert check_payload(numbers[:2]) == bytes(16)  # type: ignore[arg-type]


def test_error_that_is_raised_once_more_says_what_caused_it() -> None:
    """The first line says what became of the ledger, the cause why: an operator needs both."""
    error = MetadataUnavailableError("the ensemble cannot be changed")
    error.__cause__ = OSError("connection refused")
    copied = copy_error(error)
    assert copied is not error and type(copied) is MetadataUnavailableError
    assert copied.args == error.args and copied.__cause__ is error.__cause__
