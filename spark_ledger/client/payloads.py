"""What may be appended, and what its caller is told: checks of payloads, copies of errors."""

from __future__ import annotations

from collections.abc import Iterable

from spark_ledger.errors import ConfigurationError, EntryTooLargeError, LedgerError
from spark_ledger.limits.client import APPEND_BATCH_ENTRIES_MAX
from spark_ledger.limits.entries import ENTRY_PAYLOAD_BYTES_MAX


def check_payload(payload: bytes) -> bytes:
    """The payload as bytes.

    Raises ConfigurationError if it is no bytes, EntryTooLargeError if it is above the bound.
    """
    if not isinstance(payload, bytes):
        if not isinstance(payload, bytearray | memoryview):
            raise ConfigurationError(
                f"an entry is bytes, not {type(payload).__name__}: encode it first"
            )
        payload = bytes(payload)
    if len(payload) > ENTRY_PAYLOAD_BYTES_MAX:
        raise EntryTooLargeError(
            f"an entry of {len(payload)} bytes: at most {ENTRY_PAYLOAD_BYTES_MAX} are allowed; "
            "split it into several entries"
        )
    return payload


def check_batch(payloads: Iterable[bytes], bytes_max: int) -> list[bytes]:
    """The payloads of a batch as bytes; ``bytes_max`` is what may be in flight.

    Raises as ``check_payload``, and ConfigurationError if the batch is too large.
    """
    if isinstance(payloads, bytes | bytearray | memoryview | str):
        raise ConfigurationError(
            f"append_many takes several payloads, not one {type(payloads).__name__}: use append"
        )
    checked = [check_payload(payload) for payload in payloads]
    size_bytes = sum(map(len, checked))
    if size_bytes > bytes_max and len(checked) > 1:
        raise ConfigurationError(
            f"a batch of {size_bytes} bytes: at most {bytes_max} may be in flight "
            "(bytes_in_flight_max); append it in parts"
        )
    if len(checked) > APPEND_BATCH_ENTRIES_MAX:
        raise ConfigurationError(
            f"a batch of {len(checked)} entries: at most {APPEND_BATCH_ENTRIES_MAX} are taken at "
            "once; append it in parts"
        )
    return checked


def copy_error(error: LedgerError) -> LedgerError:
    """The same error to raise once more: every raise makes the traceback of an instance longer."""
    copied = type(error)(*error.args)
    copied.__cause__ = error.__cause__
    return copied
