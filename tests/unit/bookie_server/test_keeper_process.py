"""A bookie sees to it that its cluster has a keeper, with a process that ends with the bookie."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import msgspec
import pytest

from bookie_server import keeper_process
from bookie_server.config import AutorecoverySettings, KeeperSettings, parse
from bookie_server.keeper_process import (
    HOST,
    KeeperProcess,
    Watched,
    command,
    keeper_beside,
)
from bookie_server.service.metrics import ServiceMetrics
from spark_ledger.cli.keeper import run
from spark_ledger.errors import ConfigurationError
from spark_ledger.keeper.nodes import (
    AUDIT_PATH,
    ELECTED_PATH,
    PACKED_PATH,
    STATE_PATH,
    SWEPT_PATH,
    AuditState,
    Done,
    Elected,
    Found,
    KeeperState,
    PackedNode,
    SweptNode,
    Unlisted,
)
from spark_ledger.metadata.json_nodes import encode_node
from spark_ledger.metadata.memory import Fault, MemoryTree, Outcome
from tests.unit.bookie_server.test_config import PATH

NOTES = (
    "import os, sys; file = open(sys.argv[1], 'a'); "
    "file.write(f'{os.getpid()} {os.environ[\"WORD\"]}\\n'); file.flush(); sys.stdin.read()"
)
CONFIG_OF_NONE = """
metadata = "zk://localhost:2181/ledgers"
[storage]
journal_directory = "journal"
ledger_directories = ["ledgers"]
"""
CONFIG = """
metadata = "zk://user:secret@localhost:2181/ledgers"
[keeper]
enabled = {enabled}
unnamed_grace_s = 77.0
[storage]
journal_directory = "journal"
ledger_directories = ["ledgers"]
"""


async def until_lines(path: Path, count: int) -> list[str]:
    async with asyncio.timeout(20):
        while not path.exists() or len(path.read_text().splitlines()) < count:
            await asyncio.sleep(0.02)
    return path.read_text().splitlines()


async def until_logged(caplog: pytest.LogCaptureFixture, text: str) -> None:
    async with asyncio.timeout(20):
        while text not in caplog.text:
            await asyncio.sleep(0.01)
    caplog.clear()


async def until_gone(pid: int) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return
            await asyncio.sleep(0.02)


def test_keeper_is_started_when_there_is_none_and_ends_with_the_bookie(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemoryTree().open_session()
        notes = tmp_path / "notes"
        argv = [sys.executable, "-c", NOTES, str(notes)]
        beside = KeeperProcess(store, argv, {"WORD": "w"}, look_s=0.05)
        (line,) = await until_lines(notes, 1)
        pid, word = line.split()
        assert word == "w"
        os.kill(int(pid), 9)
        again = (await until_lines(notes, 2))[1].split()[0]
        await beside.stop()
        await until_gone(int(again))

    asyncio.run(main())


def test_keeper_that_failed_is_left_to_others_for_a_while(tmp_path: Path) -> None:
    """One that reaches no bookies would be elected again here, as it was before."""

    async def main() -> None:
        notes = tmp_path / "notes"
        program = NOTES.removesuffix("sys.stdin.read()") + "sys.exit(1)"
        argv = [sys.executable, "-c", program, str(notes)]
        beside = KeeperProcess(
            MemoryTree().open_session(), argv, {"WORD": "w"}, look_s=0.02, failed_pause_s=1.0
        )
        (line,) = await until_lines(notes, 1)
        await until_gone(int(line.split()[0]))
        await asyncio.sleep(0.5)
        assert len(notes.read_text().splitlines()) == 1
        await until_lines(notes, 2)
        await beside.stop()

    asyncio.run(main())


def test_keeper_is_not_started_beside_another(tmp_path: Path) -> None:
    async def main() -> None:
        tree = MemoryTree()
        store, other = tree.open_session(), tree.open_session()
        await other.create(ELECTED_PATH, b"", ephemeral=True)
        notes = tmp_path / "notes"
        argv = [sys.executable, "-c", NOTES, str(notes)]
        beside = KeeperProcess(store, argv, {"WORD": "w"}, look_s=0.02)
        await asyncio.sleep(0.3)
        assert not notes.exists()
        await other.close()
        await until_lines(notes, 1)
        await beside.stop()

    asyncio.run(main())


def test_keeper_is_started_once_what_kept_it_from_that_is_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An outage of the metadata, and a machine that starts no process for a while."""

    async def main() -> None:
        tree = MemoryTree()
        store = tree.open_session(interpose=lambda *_: Fault(Outcome.UNAVAILABLE))
        notes, program = tmp_path / "notes", tmp_path / "python"
        argv = [str(program), "-c", NOTES, str(notes)]
        beside = KeeperProcess(store, argv, {"WORD": "w"}, look_s=0.02)
        await until_logged(caplog, "no keeper is started now")
        store.interpose = None
        await until_logged(caplog, "No such file")
        assert not notes.exists()
        program.symlink_to(sys.executable)
        (line,) = await until_lines(notes, 1)
        pid = int(line.split()[0])
        assert beside.is_here(Elected(host=HOST, pid=pid))
        assert not beside.is_here(Elected(host=HOST, pid=pid + 1)), "another's of this machine"
        assert not beside.is_here(Elected(host=f"not-{HOST}", pid=pid))
        await beside.stop()
        assert not beside.is_here(Elected(host=HOST, pid=pid))

    asyncio.run(main())


def test_keeper_that_does_not_end_when_it_is_told_to_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it works beside the one that another bookie starts."""
    monkeypatch.setattr(keeper_process, "KEEPER_STOP_S", 0.1)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "

    async def main() -> None:
        notes = tmp_path / "notes"
        program = deaf + NOTES + "; time.sleep(60)"
        argv = [sys.executable, "-c", program, str(notes)]
        beside = KeeperProcess(MemoryTree().open_session(), argv, {"WORD": "w"}, look_s=0.02)
        (line,) = await until_lines(notes, 1)
        await beside.stop()
        await until_gone(int(line.split()[0]))

    asyncio.run(main())


def test_figures_are_read_again_after_an_outage_and_not_after_the_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def main() -> None:
        tree = MemoryTree()
        store = tree.open_session(interpose=lambda *_: Fault(Outcome.UNAVAILABLE))
        notes = tmp_path / "notes"
        argv = [sys.executable, "-c", NOTES, str(notes)]
        beside = KeeperProcess(tree.open_session(), argv, {"WORD": "w"}, look_s=0.02)
        watched = Watched(store, beside, look_s=0.02)
        await until_logged(caplog, "the keeper's numbers were not read")
        assert watched.figures is None
        store.interpose = None
        async with asyncio.timeout(20):
            while watched.figures is None or watched.repair is None:
                await asyncio.sleep(0.01)
        (line,) = await until_lines(notes, 1)
        await watched.stop()
        await until_gone(int(line.split()[0]))

    asyncio.run(main())


def test_command_line_has_the_graces_and_no_secret() -> None:
    config = parse(CONFIG.format(enabled="true"), PATH)
    argv = command(config)
    assert argv[argv.index("--unnamed-grace") + 1] == "77.0"
    assert "secret" not in " ".join(argv)


def test_bookie_that_is_told_not_to_starts_no_keeper() -> None:
    async def main() -> None:
        config = parse(CONFIG.format(enabled="false"), PATH)
        before = len(asyncio.all_tasks())
        stop = keeper_beside(config, MemoryTree().open_session(), ServiceMetrics())
        assert len(asyncio.all_tasks()) == before
        await stop()

    asyncio.run(main())


def test_every_setting_reaches_the_command() -> None:
    said = (
        "owner_grace_s = 1.5\ndropped_grace_s = 2.5\ninterval_s = 3.5\nsink_records_s = 2592000.0\n"
        "replaced_grace_s = 8.5\naudit_s = 4.5\noptimize_s = 5.5\noptimize_bytes_per_s = 8192\n"
    )
    said += "[autorecovery]\nbytes_per_s = 4096\nsource_bytes_per_s = 2048\n"
    said += "lost_bookie_delay_s = 6.5\nopen_ledger_grace_s = 7.5\n"
    config = parse(CONFIG.format(enabled="true").replace("[storage]", said + "[storage]"), PATH)
    argv = command(config)
    found = run.make_context("run", argv[argv.index("run") + 1 :]).params
    assert found["unless_elected"] and found["until_input_ends"]
    assert (found["owner_grace"], found["unnamed_grace"]) == (1.5, 77.0)
    assert (found["dropped_grace"], found["interval"]) == (2.5, 3.5)
    assert found["replaced_grace"] == 8.5
    assert (found["audit_interval"], found["optimize_interval"]) == (4.5, 5.5)
    assert found["optimize_rate"] == 8192
    assert (found["repair_rate"], found["repair_source_rate"]) == (4096, 2048)
    assert (found["lost_bookie_delay"], found["open_ledger_grace"]) == (6.5, 7.5)
    assert found["autorecovery"]
    off = said.replace("[autorecovery]", "[autorecovery]\nenabled = false")
    argv = command(
        parse(CONFIG.format(enabled="true").replace("[storage]", off + "[storage]"), PATH)
    )
    assert not run.make_context("run", argv[argv.index("run") + 1 :]).params["autorecovery"]
    assert found["sink_records"] == 30 * 86_400.0
    never = command(parse(CONFIG.format(enabled="true"), PATH))
    assert run.make_context("run", never[never.index("run") + 1 :]).params["sink_records"] is None


SECONDS = ("0.0", "0.1", "1e-7", "0.1234567", "1e9", "1e16", "inf")
NUMBERS = ("1024", "1_000_000_000_000_000", f"{2**63 - 1}")


@pytest.mark.parametrize("value", [*SECONDS, *NUMBERS])
@pytest.mark.parametrize(
    ("section", "key"),
    [
        (section, field.name)
        for section, kind in (("keeper", KeeperSettings), ("autorecovery", AutorecoverySettings))
        for field in msgspec.structs.fields(kind)
    ],
)
def test_keeper_takes_each_value_that_its_bookie_takes(section: str, key: str, value: str) -> None:
    """Else it ends at once, again and again, and nobody repairs."""
    said = f"[{section}]\n{key} = {value}\n[storage]"
    try:
        config = parse(CONFIG_OF_NONE.replace("[storage]", said), PATH)
    except ConfigurationError:
        return  # the bookie says so, and does not start
    argv = command(config)
    found = run.make_context("run", argv[argv.index("run") + 1 :]).params
    if key == "lost_bookie_delay_s":
        assert found["lost_bookie_delay"] == pytest.approx(min(float(value), 10**9 - 1), abs=1e-5)
    if key == "source_bytes_per_s":
        assert found["repair_source_rate"] == min(int(value), 10**15 - 1)


@pytest.mark.parametrize(("code", "level"), [(2, "ERROR"), (0, "INFO")])
def test_keeper_that_refuses_its_settings_is_an_error(
    caplog: pytest.LogCaptureFixture, code: int, level: str
) -> None:
    caplog.set_level("INFO")

    async def main() -> None:
        argv = [sys.executable, "-c", f"raise SystemExit({code})"]
        beside = KeeperProcess(MemoryTree().open_session(), argv, {}, look_s=0.02)
        async with asyncio.timeout(20):
            while not any("ended with" in record.message for record in caplog.records):
                await asyncio.sleep(0.01)
        await beside.stop()

    asyncio.run(main())
    (first, *_) = [record for record in caplog.records if "ended with" in record.message]
    assert first.levelname == level


def test_bookie_shows_what_the_keeper_has_written_down(tmp_path: Path) -> None:
    async def main() -> None:
        tree = MemoryTree()
        store, other = tree.open_session(), tree.open_session()
        argv = [sys.executable, "-c", NOTES, str(tmp_path / "notes")]
        beside = KeeperProcess(store, argv, {"WORD": "w"}, look_s=0.02)
        watched = Watched(store, beside, look_s=0.02)
        (line,) = await until_lines(tmp_path / "notes", 1)
        assert watched.figures is not None and not watched.figures.elected
        await other.create(ELECTED_PATH, encode_node(Elected(host=HOST, pid=int(line.split()[0]))))
        found, done = Found(open=3, unnamed_of_the_dead=2), Done(recovered=7)
        state = KeeperState(host="h", pid=1, time_ms=5000, found=found, done=done)
        await other.create(STATE_PATH, encode_node(state))
        waits = SweptNode(reclaimable_commits=4, reclaimable_bytes=500)
        await other.create(SWEPT_PATH, encode_node(waits))
        await other.create(AUDIT_PATH, encode_node(AuditState(last=Unlisted(ledgers=6), deleted=9)))
        packed = PackedNode(packs=2, commits=40, copied_bytes=600)
        await other.create(PACKED_PATH, encode_node(packed))
        async with asyncio.timeout(20):
            while (figures := watched.figures) is None or not figures.packs:
                await asyncio.sleep(0.01)
        assert figures.elected and figures.here and figures.passed_at == 5.0
        assert (figures.open, figures.unnamed_of_the_dead, figures.recovered) == (3, 2, 7)
        assert (figures.reclaimable_commits, figures.reclaimable_bytes) == (4, 500)
        assert (figures.unlisted, figures.audit_deleted) == (6, 9)
        assert (figures.packs, figures.packed_commits, figures.packed_bytes) == (2, 40, 600)
        await watched.stop()

    asyncio.run(main())
