"""Numbers of commands: each is one that a comparison decides and C can hold."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from spark_ledger.cli.app import root


def options(name: str, command: click.Command) -> Iterator[tuple[str, click.Option]]:
    """Each option of each command below this one, and the command's name."""
    if not isinstance(command, click.Group):
        yield from ((name, each) for each in command.params if isinstance(each, click.Option))
        return
    with click.Context(command) as context:
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            assert found is not None, "it is listed"
            yield from options(f"{name} {each}", found)


def numbers(kind: type[click.ParamType[float]]) -> dict[str, click.Option]:
    """Options that are numbers of this kind. The lab is a toy, whose seeds are any numbers; how
    many bookies a ledger has is checked with what it may be, and said in a sentence."""
    return {
        f"{name} {option.opts[0]}": option
        for name, option in options("ledger", root)
        if isinstance(option.type, kind)
        and not name.startswith("ledger lab")
        and option.name not in ("ensemble", "write_quorum", "ack_quorum")
    }


FLOATS, COUNTS = numbers(click.types.FloatParamType), numbers(click.types.IntParamType)


def test_options_are_found() -> None:
    assert len(FLOATS) > 8 and len(COUNTS) > 8


@pytest.mark.parametrize("name", FLOATS)
def test_what_is_no_number_is_wrong_usage(name: str) -> None:
    """Every comparison with it is false: a keeper whose passes were so far apart made none."""
    with pytest.raises(click.BadParameter, match="'nan' is no number"):
        FLOATS[name].type.convert("nan", FLOATS[name], None)


@pytest.mark.parametrize("name", COUNTS)
def test_count_that_c_cannot_hold_is_wrong_usage(name: str) -> None:
    """Until now some were tracebacks, as that of ``ledger streams read --limit``."""
    with pytest.raises(click.BadParameter, match="range"):
        COUNTS[name].type.convert(str(10**30), COUNTS[name], None)
