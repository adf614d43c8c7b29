"""The words of a script about quorums: who stores an entry, and how many answers are enough."""

from __future__ import annotations

from itertools import combinations

from spark_ledger.errors import ConfigurationError
from spark_ledger.protocol.quorum import can_confirm, confirmed_end, is_covered, write_set
from spark_ledger.types import Quorums


class QuorumWords:
    """One arithmetic lesson. Bookies are b0, b1 ... in index order."""

    def __init__(self) -> None:
        self._quorums = Quorums()
        self._lines: list[str] = []

    def run(self, line: str) -> list[str]:
        word, *arguments = line.split()
        method = getattr(self, "do_" + word.replace("-", "_"), None)
        if method is None:
            raise ConfigurationError(f"no such command: {word}")
        method(*arguments)
        lines, self._lines = ["  " + line for line in self._lines], []
        return lines

    def world_lines(self) -> list[str]:
        return self._lines

    def close(self) -> None:
        """Nothing is held."""

    def do_quorums(self, e: str, wq: str, aq: str) -> None:
        """quorums E3 WQ2 AQ2: what follows is about such ledgers."""
        assert e[0] == "E" and wq[:2] == "WQ" and aq[:2] == "AQ", "write E3 WQ3 AQ2"
        self._quorums = Quorums(int(e[1:]), int(wq[2:]), int(aq[2:]))

    def do_entries(self, count: str) -> None:
        """entries 4: where the first 4 entries go."""
        for entry_id in range(int(count)):
            self._lines.append(f"entry {entry_id} goes to {_names(self._write_set(entry_id))}")

    def do_silence(self) -> None:
        """silence: for every set of bookies that do not answer, whether a recovery may go on
        without them, and whether a writer could."""
        indexes = range(self._quorums.ensemble_size)
        for size in range(self._quorums.ensemble_size + 1):
            for silent in combinations(indexes, size):
                known = frozenset(indexes) - frozenset(silent)
                recovery = "goes on" if is_covered(known, self._quorums) else "waits for them"
                writer = "goes on" if can_confirm(frozenset(silent), self._quorums) else "stops"
                who = _names(silent) if silent else "nobody"
                self._lines.append(f"{who} silent: recovery {recovery}, writer {writer}")

    def do_confirmed(self, pushed: str, *acked: str) -> None:
        """confirmed 5 b0:4 b1:5 b2:-1: entries up to 5 were sent, b0 holds its own up to 4 ..."""
        held = {name: int(last) for name, _, last in (word.partition(":") for word in acked)}
        indexes = [held[f"b{index}"] for index in range(self._quorums.ensemble_size)]

        self._lines.append(f"confirmed up to {confirmed_end(indexes, int(pushed), self._quorums)}")

    def do_expect(self, *what: str) -> None:
        """expect complementary: for all ledgers of up to 6 bookies, recovery waits for a set of
        bookies exactly if they could confirm an entry among themselves.
        expect confirmed N 5 b0:4 ...: see ``confirmed``."""
        if what[0] == "complementary":
            _check_all_shapes()
        else:
            kind, wanted, *rest = what
            assert kind == "confirmed", kind
            self.do_confirmed(*rest)
            assert self._lines.pop() == f"confirmed up to {wanted}", wanted

    def _write_set(self, entry_id: int) -> tuple[int, ...]:
        return write_set(entry_id, self._quorums)


def _names(indexes: tuple[int, ...]) -> str:
    return " ".join(f"b{index}" for index in indexes)


def _check_all_shapes() -> None:
    for e in range(1, 7):
        for wq in range(1, e + 1):
            for aq in range(1, wq + 1):
                _check_shape(Quorums(e, wq, aq))


def _check_shape(quorums: Quorums) -> None:
    """By counting, and not by the rules that are being checked."""
    e, wq, aq = quorums.ensemble_size, quorums.write_quorum, quorums.ack_quorum
    windows = [{(entry_id + i) % e for i in range(wq)} for entry_id in range(e)]
    for mask in range(2**e):
        silent = {index for index in range(e) if mask >> index & 1}

        among_the_silent = any(len(window & silent) >= aq for window in windows)
        covered = is_covered(frozenset(range(e)) - silent, quorums)
        assert covered != among_the_silent, f"{quorums}, silent: {sorted(silent)}"
