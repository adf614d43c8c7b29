"""Valid inputs made invalid: bits flipped, pieces cut, doubled, swapped, numbers at extremes."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Final

_EXTREMES: Final = (0, 1, 0x7F, 0x80, 0xFF, 0xFE, 0x7FFF, 0x8000, 0x7FFFFFFF, 0x80000000)
_WIDTHS: Final = (1, 2, 4, 8)
_NUMBERS: Final = (
    "-1",
    "0",
    "1",
    "-0",
    "1.5",
    "1e400",
    "-9223372036854775809",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551616",
    "2147483648",
    "9" * 400,
    "9" * 5000,
    "NaN",
    "null",
    "true",
    '""',
    '"1"',
    "[]",
    "{}",
    "\u0663",
)
_CHARACTERS: Final = '{}[]":,=.-+\\/ \t\n\r\0#@%?&;_aZ09\u00e9\u20ac\u0663\U0001f600\u200b\x7f'
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?")
_WORD: Final = re.compile(r'"[^"]*"|\w+')


class Mutator:
    """Draws mutations from one seed. ``corpus`` is what to start from, and to splice with."""

    def __init__(self, choose: random.Random, corpus: Sequence[bytes], *, is_text: bool) -> None:
        assert corpus, "a parser has valid inputs"
        self._choose = choose
        self._corpus = corpus
        self._texts = [data.decode("utf-8") for data in corpus] if is_text else []
        self._numbers = [[m.span() for m in _NUMBER.finditer(text)] for text in self._texts]
        self._words = [[m.span() for m in _WORD.finditer(text)] for text in self._texts]
        self._kinds: tuple[Callable[[bytes], bytes], ...] = (
            self._flip,
            self._flip,
            self._flip_many,
            self._overwrite,
            self._cut,
            self._cut_out,
            self._extend,
            self._double,
            self._swap,
            self._number,
            self._number,
            self._splice,
            self._random,
        )

    def draw(self) -> bytes:
        """One malformed input (seldom one that is valid by chance)."""
        random_number = self._choose.random
        if self._texts and random_number() < 0.7:
            return self._draw_text()
        data = self._corpus[int(random_number() * len(self._corpus))]
        data = self._kinds[int(random_number() * len(self._kinds))](data)
        if random_number() < 0.15:
            data = self._kinds[int(random_number() * len(self._kinds))](data)
        return data

    # -- bytes ---------------------------------------------------------------------------------

    def _offset(self, data: bytes | bytearray) -> int:
        return int(self._choose.random() * len(data))

    def _flip(self, data: bytes) -> bytes:
        if not data:
            return b"\0"
        at = self._offset(data)
        return b"%b%c%b" % (
            data[:at],
            data[at] ^ 1 << int(self._choose.random() * 8),
            data[at + 1 :],
        )

    def _flip_many(self, data: bytes) -> bytes:
        damaged = bytearray(data or b"\0")
        for _flip in range(self._choose.randint(2, 9)):
            damaged[self._offset(damaged)] ^= 1 << int(self._choose.random() * 8)
        return bytes(damaged)

    def _overwrite(self, data: bytes) -> bytes:
        at = self._offset(data)
        filler = self._choose.randbytes(1 + int(self._choose.random() * 8))
        return data[:at] + filler + data[at + len(filler) :]

    def _cut(self, data: bytes) -> bytes:
        at = self._offset(data)
        return data[:at] if self._choose.random() < 0.8 else data[at:]

    def _cut_out(self, data: bytes) -> bytes:
        at = self._offset(data)
        return data[:at] + data[at + 1 + int(self._choose.random() * 16) :]

    def _extend(self, data: bytes) -> bytes:
        count = 1 + int(self._choose.random() * 40)
        filler = bytes(count) if self._choose.random() < 0.3 else self._choose.randbytes(count)
        if self._choose.random() < 0.7:
            return data + filler
        at = self._offset(data)
        return data[:at] + filler + data[at:]

    def _double(self, data: bytes) -> bytes:
        start = self._offset(data)
        end = start + 1 + int(self._choose.random() * 64)
        return data[:end] + data[start:end] * self._choose.randint(1, 3) + data[end:]

    def _swap(self, data: bytes) -> bytes:
        a, b, c = sorted(self._offset(data) for _ in range(3))
        return data[:a] + data[b:c] + data[a:b] + data[c:]

    def _number(self, data: bytes) -> bytes:
        width = self._choose.choice(_WIDTHS)
        value = self._choose.choice(_EXTREMES)
        kind = self._choose.random()
        if kind < 0.3:
            value = (1 << 8 * width) - 1 - value  # the extremes from above
        elif kind < 0.5:
            value = (1 << 8 * width - 1) + (value & 1)
        value &= (1 << 8 * width) - 1
        at = self._offset(data)
        big = self._choose.random() < 0.5
        return data[:at] + value.to_bytes(width, "big" if big else "little") + data[at + width :]

    def _splice(self, data: bytes) -> bytes:
        other = self._choose.choice(self._corpus)
        if self._choose.random() < 0.5:
            at = self._offset(data)
            return data[:at] + other[at:]
        return data[: self._offset(data)] + other[self._offset(other) :]

    def _random(self, data: bytes) -> bytes:
        count = int(self._choose.random() * (len(data) + 32))
        return bytes(count) if self._choose.random() < 0.05 else self._choose.randbytes(count)

    # -- text ----------------------------------------------------------------------------------

    def _draw_text(self) -> bytes:
        which = int(self._choose.random() * len(self._texts))
        text = self._texts[which]
        kind = self._choose.random()
        if kind < 0.4 and self._numbers[which]:
            start, end = self._choose.choice(self._numbers[which])
            text = text[:start] + self._choose.choice(_NUMBERS) + text[end:]
        elif kind < 0.6 and self._words[which]:
            text = self._change_word(text, which)
        elif kind < 0.62:
            at = int(self._choose.random() * (len(text) + 1))
            text = text[:at] + self._choose.choice("[{(\"'") * 3000 + text[at:]
        else:
            for _change in range(self._choose.choice((1, 1, 1, 2, 4))):
                at = int(self._choose.random() * (len(text) + 1))
                skip = self._choose.choice((0, 1, 1, 2, 9))
                text = text[:at] + self._choose.choice(_CHARACTERS) + text[at + skip :]
        return text.encode()

    def _change_word(self, text: str, which: int) -> str:
        start, end = self._choose.choice(self._words[which])
        other_start, other_end = self._choose.choice(self._words[which])
        kind = self._choose.random()
        if kind < 0.4:  # another word instead
            return text[:start] + text[other_start:other_end] + text[end:]
        if kind < 0.6:
            return text[:start] + self._choose.choice(_NUMBERS) + text[end:]
        if kind < 0.8:  # gone
            return text[:start] + text[end:]
        piece = text[start : max(end, other_end)]
        return text[:start] + piece + piece + text[max(end, other_end) :]
