"""Cells of rows, for people and as JSON: any value that a stream can hold has a text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol, cast

import click

from spark_ledger.cli.show.output import payload_fields
from spark_ledger.cli.show.variants import is_variant, variant_of

if TYPE_CHECKING:
    import pyarrow

CELL_CHARS_MAX: Final = 40

_UNITS: Final = {"timestamp[us]": "us", "timestamp[us, tz=UTC]": "us", "date32[day]": "days"}


class _DayOrTime(Protocol):
    """Arrow's scalar of a date or timestamp; the stubs lack its ``value`` for dates."""

    value: int


def rows_of(batch: pyarrow.RecordBatch) -> list[dict[str, object]]:
    """The rows of a batch as Python values.

    What Python has no value for becomes text: days and times outside of the years 1 to 9999, text
    that is not UTF-8. A variant is shown as what it holds.
    """
    variants = [field.name for field in batch.schema if is_variant(field.type)]
    rows: list[dict[str, object]]
    try:
        rows = batch.to_pylist()
    except (UnicodeDecodeError, OverflowError, ValueError):
        columns = [[_value(scalar) for scalar in column] for column in batch.columns]
        names = batch.schema.names
        rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    for row in rows if variants else ():
        row.update({name: variant_of(row[name]) for name in variants})
    return rows


def _value(scalar: pyarrow.Scalar[pyarrow.DataType]) -> object:
    import pyarrow as pa

    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.StructScalar):
        return {name: _value(scalar[name]) for name in scalar}
    if isinstance(scalar, pa.MapScalar | pa.ListScalar):
        items = scalar.values
        assert items is not None, "it is valid"
        if isinstance(scalar, pa.MapScalar):
            return [(_value(entry["key"]), _value(entry["value"])) for entry in items]
        return [_value(item) for item in items]
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return (
            cast("pyarrow.StringScalar", scalar).as_buffer().to_pybytes().decode(errors="replace")
        )
    except (OverflowError, ValueError):
        count = cast("_DayOrTime", scalar).value
        return f"{count} {_UNITS.get(str(scalar.type), '')} since 1970".replace("  ", " ")


def json_value(value: object) -> object:
    """A cell for JSON: bytes as text or base64, NaN and infinities as Spark's ``to_json`` prints
    them. What else JSON lacks (times, decimals) is made into text by ``print_json``."""
    if isinstance(value, bytes):
        return dict(payload_fields(value))
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {name: json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    return value


def cell_text(value: object) -> str:
    """A cell for people, cut if long; line breaks and what a terminal would obey are escaped."""
    text = "" if value is None else str(value)
    text = text if len(text) <= CELL_CHARS_MAX else text[: CELL_CHARS_MAX - 1] + "…"
    if not text.isprintable():
        text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return text


def print_cells(
    names: Sequence[str],
    rows: Sequence[dict[str, object]],
    *,
    above: Sequence[int] | None = None,
) -> list[int]:
    """A table with one line a row, and the widths of its columns. Rich takes milliseconds a row,
    and an entry has thousands. ``above``: the widths of the same table, which goes on."""
    from rich.cells import cell_len

    lines = [[cell_text(name) for name in names]]
    lines += [[cell_text(row[name]) for name in names] for row in rows]
    sizes = [[cell_len(text) for text in line] for line in lines]
    widths = [max(column) for column in zip(*sizes, *([above] if above else []), strict=True)]
    printed = [
        "  ".join(
            text + " " * (width - size)
            for text, size, width in zip(line, line_sizes, widths, strict=True)
        ).rstrip()
        for line, line_sizes in zip(lines, sizes, strict=True)
    ]
    if above is None:
        click.echo(click.style(printed[0], bold=True))
    click.echo("\n".join(printed[1:]))
    return widths
