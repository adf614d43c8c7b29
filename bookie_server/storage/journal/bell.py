"""How the service thread and the journal thread wake each other: a byte in a pipe.

Not a lock or a condition variable. Who rings goes to sleep itself, and the kernel takes a byte in a
pipe as a sign of that: the other thread goes on where this one stops, on the same core, with its
caches warm and the interpreter's lock free. What waits for a lock is woken on another core, which
has to leave its rest for it, and then finds the interpreter's lock taken and sleeps again.
"""

from __future__ import annotations

import os
import select


class Bell:
    """A bell for one thread that waits. Each ring is taken once, and must be before the next."""

    def __init__(self) -> None:
        # Any thread: set by ``open``, before there are several.
        self._read_end = self._write_end = -1
        self._readable = select.poll()

    def open(self) -> None:
        """Take the descriptors. Raises OSError if there are none."""
        assert self._read_end < 0, "opened twice"
        self._read_end, self._write_end = os.pipe()
        self._readable.register(self._read_end, select.POLLIN)

    def ring(self) -> None:
        """Wake who waits, now or when it comes."""
        os.write(self._write_end, b"\0")

    def rings_within(self, timeout_s: float) -> bool:
        """Whether it rings within the time; the ring is still to be taken."""
        return bool(self._readable.poll(timeout_s * 1000))

    def take(self) -> None:
        """Sleep until it rings, and take the ring."""
        os.read(self._read_end, 1)

    def close(self) -> None:
        """Give the descriptors back: nobody waits or rings any more. Closing twice is allowed."""
        ends = self._read_end, self._write_end
        self._read_end = self._write_end = -1
        for descriptor in ends:
            if descriptor >= 0:
                os.close(descriptor)

    def __del__(self) -> None:
        self.close()
