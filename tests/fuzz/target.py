"""A target of fuzzing: a parser, valid inputs, the errors it may raise, what it may accept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Parse = Callable[[bytes], object]
Judge = Callable[[bytes, object], str]


def _accepts_anything(_data: bytes, _value: object) -> str:
    return ""


@dataclass(frozen=True)
class Target:
    """One parser. ``parse`` returns None for what it refuses without an error.

    ``errors`` are all that it may raise. ``judge`` says what is wrong with an accepted value, or
    "". ``share`` is its weight: how many of a million inputs it gets.
    """

    name: str
    corpus: Sequence[bytes]
    parse: Parse
    errors: tuple[type[BaseException], ...]
    share: int
    judge: Judge = _accepts_anything
    is_text: bool = False


def only_what_was_written(corpus: Sequence[bytes], parse: Parse) -> Judge:
    """For inputs under a checksum: what is accepted is one of the values that were written."""
    values = [parse(data) for data in corpus]
    assert None not in values, "the corpus is valid"

    def judge(_data: bytes, value: object) -> str:
        return "" if value in values else f"accepted {value!r:.300}"

    return judge


def written_again_it_is_the_same(encode: Callable[[object], bytes]) -> Judge:
    """For formats with one encoding per value: what is accepted encodes to the same input again."""

    def judge(data: bytes, value: object) -> str:
        again = encode(value)
        return "" if again == data else f"accepted {value!r:.200}, which is written {again!r:.200}"

    return judge
