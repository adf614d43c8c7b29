"""How hostile a schedule is, drawn from its seed, as data: a run can be repeated with less.

Swarm testing: each seed leaves out some kinds of faults and exaggerates others, because a fault
that is always there hides what happens without it. README.md says how to add one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from spark_ledger.types import Quorums

SHAPES: Final = (
    *((3, 3, 2),) * 4,
    (2, 2, 1),
    (2, 2, 2),
    (3, 2, 2),
    (3, 2, 2),
    (3, 2, 1),
    (4, 3, 2),
    (4, 2, 2),
    (3, 3, 3),
    (2, 1, 1),
)

FAULTS: Final = (
    "crash",
    "crash_in_io",
    "crash_all",
    "pause_bookie",
    "slow_disk",
    "disk_full",
    "disk_error",
    "cut",
    "cut_one_way",
    "clog",
    "reset",
    "zookeeper_down",
    "expire",
    "pause_client",
    "crash_client",
    "failover",
    "clock_jump",
)
"""The kinds of faults that the nemesis chooses from. ``draw_options`` draws once for each of them,
so a new kind changes what most seeds do; README.md says what to run then."""


class LedgerPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One ledger: its quorums, how much is written to it, and which other clients use it."""

    quorums: tuple[int, int, int]
    entries: int
    burst: int
    pace_s: float
    size: int
    closes: bool
    recoverers: int
    recover_after_s: float
    tailers: int
    readers: int
    deletes: bool
    password: bool = False
    strangers: int = 0

    def shape(self) -> Quorums:
        """The quorums as the product has them."""
        return Quorums(*self.quorums)


class StreamPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One stream: its sinks, how often they commit, and how often they die."""

    quorums: tuple[int, int, int]
    transactions: int
    sinks: int
    rivals: int
    crash: float
    appends: int
    readers: int
    bucket: int = 1000
    """Commits per bucket; a small number makes commits cross the border of one, and a third of it
    is a leaf of manifests."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything about a schedule that is fixed before it begins."""

    bookies: int = 4
    shuffle: bool = False
    delay: str = "uniform"
    delay_s: float = 0.002
    loss: float = 0.0
    duplicates: float = 0.0
    corruption: float = 0.0
    metadata_faults: float = 0.0
    stale_reads: bool = False
    fault_gap_s: float = 0.3
    fault_s: float = 0.5
    faults: tuple[str, ...] = ()
    rot: str = ""
    drift: bool = False
    flush_s: float = 0.5
    write_cache_bytes: int = 65536
    chunk_bytes: int = 1 << 20
    phase_s: float = 8.0
    ledgers: tuple[LedgerPlan, ...] = ()
    stream: StreamPlan | None = None
    loses_newest: bool = False
    """Whether the bookie with the damaged journal loses its newest file instead of a bit."""
    copies: bool = False
    """Whether disks are copied, and bookies started on the copies."""
    restores: bool = False
    """Whether ZooKeeper is restored from a backup."""
    overtakes: bool = False
    """Whether the tail of a stream is cut off then, until new commits have passed what it saw."""
    sessions_last: bool = False
    """Whether sessions that were there at the backup go on then, without what they made since."""
    empties: bool = False
    """Whether ZooKeeper comes back without its data for a while, and then with all of them."""
    late_writes: bool = False
    """Whether writes to ZooKeeper may be long on their way, and come when their sender is dead."""
    stalls: bool = False
    """Whether journals hang now and then."""
    busy: float = 0.0
    """How likely a request is refused as busy."""
    lies: str = ""
    """How one bookie lies: not at all, in answers to adds and reads, or about the end ("ends")."""
    write_once_bytes: int = 0
    """Runs of that many bytes go to run logs; 0: none does."""
    keepers: int = 0
    """How many keepers there are, one of which is elected."""
    lone_liar: bool = False
    """Whether all other bookies can be reached where one lies about the end."""
    collects: bool = False
    """Whether bookies collect garbage, and more ledgers are deleted."""
    compacts: bool = False
    """Whether bookies copy what is alive out of logs that are half dead, and remove those."""
    ledger_stalls: bool = False
    """Whether the disks of ledger directories hang now and then."""
    false_fences: bool = False
    """Whether one bookie speaks of fences that are not there, and writers make more ledgers."""
    lonely_tails: bool = False
    """Whether clients that follow a ledger lose ZooKeeper, and nothing else goes wrong."""
    drops: bool = False
    """Whether rows of the stream are dropped and held, while others read and keepers give back."""
    audits: bool = False
    """Whether keepers audit all the time, and each commit of several ledgers names them ahead."""
    races: bool = False
    """Whether somebody holds rows and commits in the moment in which others drop and delete."""
    repairers: int = 0
    """How many make the copies of bookies again that were gone for a moment."""
    scrubs: bool = False
    """Whether bookies verify all that they store after each flush."""
    together: bool = False
    """Whether sinks commit to two streams at once, of which one is truncated or deleted."""
    rack_loss: str = ""
    """How all bookies of one rack go at once: not at all, "for good", or "returns"."""
    packs: bool = False
    """Whether keepers pack small commits of the stream, and delete their former ledgers."""
    shared_tails: bool = False
    """Whether clients that follow a ledger do so with several tails, which come, stop and leave."""

    @property
    def is_liar_one_of_several(self) -> bool:
        """Whether bookies may be down while another lies about the end."""
        return self.lies == "ends" and not self.lone_liar


def draw_options(seed: int) -> Options:
    """Draw the options of a seed. A new option is drawn last: a draw in between moves all draws
    behind it, and so changes what most seeds do."""
    draw = random.Random(f"options {seed}")
    faults = tuple(kind for kind in FAULTS if draw.random() < 0.45)
    rot = draw.choice(["", "", "", "", "", "journal", "flip", "gone", "everywhere"])
    tolerant = bool(rot)
    with_stream = draw.random() < 0.12
    count = draw.choice([0, 0, 1]) if with_stream else draw.choice([1, 1, 1, 1, 1, 1, 2])
    if rot == "flip" and count == 1:
        count = 2  # a misdirected block needs a second ledger
    ledgers = tuple(_draw_ledger(draw, tolerant=tolerant) for _ in range(count))
    stream = _draw_stream(draw, tolerant=tolerant) if with_stream else None
    largest = max(plan.quorums[0] for plan in (*ledgers, stream) if plan is not None)
    options = Options(
        bookies=5 if rot else max(largest, draw.choice([3, 4, 4, 5])),
        shuffle=draw.random() < 0.5,
        delay=draw.choice(["uniform", "heavy", "links"]),
        delay_s=draw.choice([0.001, 0.003, 0.01]),
        loss=draw.choice([0.0, 0.0, 0.01, 0.05]),
        duplicates=draw.choice([0.0, 0.02, 0.1]),
        corruption=draw.choice([0.0, 0.0, 0.0, 0.05]),
        metadata_faults=draw.choice([0.0, 0.0, 0.03, 0.12]),
        stale_reads=draw.random() < 0.3,
        fault_gap_s=draw.choice([0.08, 0.2, 0.5]),
        fault_s=draw.choice([0.1, 0.4, 1.0]),
        faults=faults,
        rot=rot,
        drift=draw.random() < 0.3,
        flush_s=draw.choice([0.05, 0.3, 2.0, 30.0]),
        write_cache_bytes=draw.choice([8192, 65536, 65536]),
        chunk_bytes=draw.choice([150, 1 << 20, 1 << 20]),
        phase_s=draw.choice([3.0, 5.0, 8.0]),
        ledgers=ledgers,
        stream=stream,
        loses_newest=draw.random() < 0.5,
        copies=draw.random() < 0.15 and not rot,
        restores=draw.random() < 0.06 and stream is None,
        late_writes=draw.random() < 0.12,
        stalls=draw.random() < 0.15,
        busy=draw.choice([0.0, 0.0, 0.0, 0.0, 0.02, 0.1]),
        lies=draw.choice(["", "", "", "", "", "", "answers", "ends"]) if not rot else "",
        write_once_bytes=draw.choice([0, 150, 400, 400]),
        keepers=draw.choice([0, 1, 2, 2] if stream is not None else [0, 0, 0, 0, 0, 1]),
        lone_liar=draw.random() < 0.5,
        collects=draw.random() < 0.25,
        compacts=draw.random() < 0.2,
        ledger_stalls=draw.random() < 0.12,
        false_fences=draw.random() < 0.04 and stream is None and not rot,
        lonely_tails=draw.random() < 0.04 and stream is None and not rot,
        drops=draw.random() < 0.5 and stream is not None,
        audits=draw.random() < 0.5 and stream is not None,
        races=draw.random() < 0.8,
        repairers=int(draw.random() < 0.1),
        scrubs=draw.random() < 0.25 and rot in ("flip", "everywhere"),
        together=draw.random() < 0.4 and stream is not None,
        packs=draw.random() < 0.5 and stream is not None,
        shared_tails=draw.random() < 0.15,
    )
    options = _with_later_options(_with_keepers(options), seed)
    # By this name the draw leaves the seeds alone that found something before.
    overtakes = options.restores and options.stream is None
    if overtakes and random.Random(f"overtakes 24 {seed}").random() < 0.3:
        # Alone: a ledger of the stream may get the id of one that was lost, whose readers read on.
        options = msgspec.structs.replace(options, overtakes=True, ledgers=())
    return options


def _with_later_options(options: Options, seed: int) -> Options:
    """What came later has draws of its own: other seeds stay as they were."""
    restores = random.Random(f"restores with streams 1 {seed}")
    if restores.random() < 0.25 and options.drops:
        # Without ledgers beside it, whose readers read on as a ledger of the stream gets their id.
        options = msgspec.structs.replace(options, restores=True, ledgers=())
    stream = options.stream
    pairs = random.Random(f"restores with two streams 1 {seed}")
    if pairs.random() < 0.3 and options.together and stream is not None:
        # Alone: of others nobody counts what they lose. With one acknowledged copy, rows are lost
        # with an ensemble change that the backup lacks, though they are committed behind it.
        stream = msgspec.structs.replace(
            stream, quorums=(3, 3, 2), sinks=0, rivals=0, appends=0, readers=0
        )
        options = msgspec.structs.replace(
            options, bookies=max(4, options.bookies), restores=True, stream=stream, ledgers=()
        )
        options = msgspec.structs.replace(options, collects=False, compacts=False)
    racks = random.Random(f"rack loss {seed}")
    if racks.random() < 0.04 and stream is None and not options.rot:
        return _without_a_rack(options, racks.choice(["for good", "returns"]))
    if random.Random(f"empties {seed}").random() < 0.05 and not options.restores:
        options = msgspec.structs.replace(options, empties=True)
    if random.Random(f"sessions last {seed}").random() < 0.5 and options.restores:
        options = msgspec.structs.replace(options, sessions_last=True)
    if options.ledger_stalls:  # else the write cache is hardly ever full
        options = msgspec.structs.replace(options, write_cache_bytes=8192)
    if options.false_fences or options.lonely_tails:
        return _all_well(options)
    return _in_reach(options, [plan for plan in (*options.ledgers, stream) if plan is not None])


def _with_keepers(options: Options) -> Options:
    """A stream whose rows are dropped needs a keeper, and so does one that is audited."""
    stream = options.stream
    if options.audits or options.packs:
        options = msgspec.structs.replace(options, keepers=max(1, options.keepers))
    if options.drops:  # keepers drop what retention allows
        assert stream is not None, "there is something to drop"
        more = msgspec.structs.replace(stream, transactions=2 * stream.transactions)
        options = msgspec.structs.replace(options, stream=more, keepers=max(1, options.keepers))
    else:
        options = msgspec.structs.replace(options, races=False)
    if options.drops:  # what those streams lose nobody counts
        options = msgspec.structs.replace(options, together=False)
    return options


_HARMLESS_TO_BOOKIES: Final = frozenset(
    {"zookeeper_down", "expire", "pause_client", "crash_client", "failover", "clock_jump"}
)


_CALM: Final = frozenset({"pause_client", "crash_client", "failover", "clock_jump"})
"""Kinds of faults that come near neither bookies nor ZooKeeper."""


def _all_well(options: Options) -> Options:
    """Nothing goes wrong with bookies but what the schedule is about: so it can be said exactly
    whom a client has to avoid, and what a reader has to see. One of the two fails at a time."""
    calm = _CALM - ({"pause_client"} if options.lonely_tails else set())
    ledgers = options.ledgers
    if options.lonely_tails:
        ledgers = tuple(
            msgspec.structs.replace(
                plan, tailers=max(plan.tailers, 1), entries=45, pace_s=0.15, recoverers=0
            )
            for plan in ledgers
        )
    return msgspec.structs.replace(
        options,
        bookies=5,
        faults=tuple(kind for kind in options.faults if kind in calm),
        phase_s=8.0,
        delay="uniform",
        loss=0.0,
        corruption=0.0,
        metadata_faults=0.0,
        drift=False,
        flush_s=0.3,
        ledgers=ledgers,
        copies=False,
        restores=False,
        empties=False,
        late_writes=False,
        stalls=False,
        ledger_stalls=False,
        collects=False,
        compacts=False,
        busy=0.0,
        lies="",
        repairers=0,
        false_fences=options.false_fences and not options.lonely_tails,
    )


def _without_a_rack(options: Options, how: str) -> Options:
    """A rack goes, and nothing else. Three racks have room for quorums of which no rack holds as
    many copies as acknowledge an entry; of two others more are needed, or one is too many."""
    repairers = options.repairers
    options = _all_well(msgspec.structs.replace(options, false_fences=False, lonely_tails=False))
    ledgers = tuple(
        msgspec.structs.replace(
            plan,
            quorums=plan.quorums if plan.quorums in _IN_THREE_RACKS else (3, 3, 2),
            entries=45,
            pace_s=0.15,
        )
        for plan in options.ledgers
    )
    return msgspec.structs.replace(
        options, bookies=9, ledgers=ledgers, repairers=repairers, rack_loss=how
    )


_IN_THREE_RACKS: Final = frozenset({(3, 3, 2), (2, 2, 2), (3, 2, 2), (4, 2, 2), (3, 3, 3)})


def _in_reach(options: Options, plans: Sequence[LedgerPlan | StreamPlan]) -> Options:
    """With WQ = AQ no bookie may lie about the end (rule P5). A liar may be the only bad bookie:
    then ends must not stay unseen either."""
    if options.lies != "ends":
        return msgspec.structs.replace(options, lone_liar=False)
    if any(
        write_quorum == ack_quorum for _, write_quorum, ack_quorum in (p.quorums for p in plans)
    ):
        return msgspec.structs.replace(options, lies="answers", lone_liar=False)
    if not options.lone_liar:
        return options
    faults = tuple(kind for kind in options.faults if kind in _HARMLESS_TO_BOOKIES)
    return msgspec.structs.replace(
        options, faults=faults, delay="uniform", loss=0.0, copies=False, stalls=False
    )


def _shape(draw: random.Random, *, tolerant: bool) -> tuple[int, int, int]:
    """Draw quorums; where a copy may be damaged, only those that tolerate the loss of one."""
    return draw.choice([shape for shape in SHAPES if not tolerant or shape[2] >= 2])


def _draw_ledger(draw: random.Random, *, tolerant: bool) -> LedgerPlan:
    return LedgerPlan(
        quorums=_shape(draw, tolerant=tolerant),
        entries=draw.choice([3, 8, 16, 28, 45]),
        burst=draw.choice([1, 2, 4]),
        pace_s=draw.choice([0.005, 0.02, 0.05, 0.15]),
        size=draw.choice([0, 0, 200, 3000]),
        closes=draw.random() < 0.5,
        recoverers=draw.choice([0, 1, 1, 2]),
        recover_after_s=draw.choice([0.05, 0.3, 1.0, 2.5]),
        tailers=draw.choice([0, 0, 0, 1, 2]),
        readers=draw.choice([0, 0, 1]),
        deletes=draw.random() < 0.06,
        password=draw.random() < 0.3,
        strangers=draw.choice([0, 0, 0, 1]),
    )


def _draw_stream(draw: random.Random, *, tolerant: bool) -> StreamPlan:
    return StreamPlan(
        quorums=_shape(draw, tolerant=tolerant),
        transactions=draw.choice([2, 3, 5]),
        sinks=draw.choice([1, 2]),
        rivals=draw.choice([0, 1, 1]),
        crash=draw.choice([0.0, 0.1, 0.25]),
        appends=draw.choice([0, 0, 2]),
        readers=draw.choice([0, 1]),
        bucket=draw.choice([1000, 4, 6]),
    )


def options_of(values: dict[str, Any] | None, seed: int) -> Options:
    """The options of a seed, some of them replaced. Raises ValidationError for an unknown name."""
    drawn = draw_options(seed)
    if not values:
        return drawn
    return msgspec.convert(
        {**msgspec.structs.asdict(drawn), **values}, Options, from_attributes=True
    )
