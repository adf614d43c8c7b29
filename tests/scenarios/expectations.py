"""``expect`` in a scenario script: what must be true, so that no rewrite can bless a mistake."""

from __future__ import annotations

from spark_ledger.protocol.events import Done, Failed
from tests.scenarios.recoverer import Reader, Recoverer
from tests.scenarios.world import World, fragments_text, ranges_text
from tests.scenarios.writer import Writer


class Expectations:
    """Each method checks one kind of statement; a wrong one raises AssertionError."""

    def __init__(self, world: World) -> None:
        self._world = world

    def check(self, words: list[str]) -> None:
        kind, *rest = words
        getattr(self, "_expect_" + kind.replace("-", "_"))(*rest)

    def _writer(self) -> Writer:
        writer = self._world.actors["writer"]
        assert isinstance(writer, Writer)
        return writer

    def _expect_confirmed(self, last: str) -> None:
        """expect confirmed 4: the application was told of entries 0..4, and of no more."""
        assert self._world.confirmed == int(last), f"confirmed {self._world.confirmed}"
        assert self._writer().machine.last_add_confirmed == int(last)

    def _expect_failed(self, span: str, error: str) -> None:
        """expect failed 3..5 FencedError."""
        failed = {
            entry_id: type(outcome).__name__
            for entry_id, outcome in self._writer().outcomes.items()
            if outcome is not None
        }
        assert ranges_text(failed) == span, f"failed: {failed}"
        assert set(failed.values()) == {error}, f"failed: {failed}"

    def _expect_waiting(self, *span: str) -> None:
        """expect waiting 3..5 | nothing."""
        waiting = ranges_text(self._writer().pending())
        assert waiting == " ".join(span), f"waiting: {waiting}"

    def _expect_fragments(self, *words: str) -> None:
        """expect fragments 0 b0 b1 b2 4 b0 b3 b2."""
        found = " ".join(
            f"{fragment.first_entry} {' '.join(fragment.bookies)}"
            for fragment in self._world.metadata.value.fragments
        )
        wanted = " ".join(words)
        assert found == wanted, f"fragments: {fragments_text(self._world.metadata.value)}"

    def _expect_state(self, state: str, last: str = "") -> None:
        """expect state open | in_recovery | closed N."""
        metadata = self._world.metadata.value
        assert metadata.state.value == state, f"state: {metadata.state.value}"
        if last:
            assert metadata.last_entry_id == int(last), f"closed at {metadata.last_entry_id}"

    def _expect_handle(self, state: str, last: str = "") -> None:
        """expect handle closed 4: the metadata as the writer's handle shows them."""
        metadata = self._writer().machine.metadata
        assert metadata.state.value == state, f"state: {metadata.state.value}"
        if last:
            assert metadata.last_entry_id == int(last), f"closed at {metadata.last_entry_id}"

    def _expect_version(self, version: str) -> None:
        """expect version 2: the metadata were written twice."""
        assert self._world.metadata.version == int(version), str(self._world.metadata.version)

    def _expect_close(self, outcome: str) -> None:
        """expect close ok | ErrorName: what the application's close returned."""
        told = self._writer().closed_with
        assert told is not None, "close has not returned"
        found = "ok" if isinstance(told, Done) else type(told.error).__name__
        assert found == outcome, found

    def _expect_recovery(self, name: str, outcome: str, last: str = "") -> None:
        """expect recovery r1 ok 9 | ErrorName | running."""
        recoverer = self._world.actors[name]
        assert isinstance(recoverer, Recoverer)
        told = recoverer.outcome
        if told is None:
            assert outcome == "running", f"{name} is still running"
        elif isinstance(told, Failed):
            assert type(told.error).__name__ == outcome, f"{name}: {told.error!r}"
        else:
            assert outcome == "ok", f"{name} succeeded"
            assert told.metadata.last_entry_id == int(last), str(told.metadata.last_entry_id)

    def _expect_lac(self, last: str, name: str = "reader") -> None:
        """expect lac 3 [reader]: what a reader knows."""
        assert self._reader(name).last_add_confirmed == int(last)

    def _expect_read(self, span: str, name: str = "reader") -> None:
        """expect read 0..4: the reader's reads brought exactly these, in order."""
        delivered = self._reader(name).delivered
        assert delivered == sorted(set(delivered)), f"delivered {delivered}"
        assert ranges_text(delivered) == span, f"delivered {ranges_text(delivered)}"

    def _expect_error(self, error: str, name: str = "reader") -> None:
        """expect error NoSuchEntryError [reader]."""
        found = self._reader(name).error
        assert type(found).__name__ == error, repr(found)

    def _expect_held(self, span: str, *names: str) -> None:
        """expect held 0..4 b0 b1: each of these bookies holds all of these entries."""
        first, _, last = span.partition("..")
        wanted = range(int(first), int(last or first) + 1)
        for name, bookie in self._world.bookies.items():
            if name in names:
                missing = [e for e in wanted if e not in bookie.entries]
                assert not missing, f"{name} lacks {ranges_text(missing)}"

    def _expect_fenced(self, *names: str) -> None:
        """expect fenced b0 b1: exactly these bookies are fenced. "nobody" for none."""
        fenced = [name for name, bookie in self._world.bookies.items() if bookie.fenced]
        assert " ".join(fenced or ["nobody"]) == " ".join(names), f"fenced: {fenced}"

    def _expect_waits(self, answer: str) -> None:
        """expect waits yes: the writer has no room for more."""
        assert self._writer().machine.has_room == (answer == "no")

    def _reader(self, name: str) -> Reader:
        reader = self._world.actors[name]
        assert isinstance(reader, Reader)
        return reader
