"""What follows from the events of ranks: seconds, the bubble, clocks, bounded memory."""

from pathlib import Path

import numpy as np
import pytest

from nnmpi import Config
from nnmpi.addons.simulator.commands.trace import TraceFile
from nnmpi.addons.trace.chrome import write
from nnmpi.addons.trace.recording import RankEntries, Recording
from nnmpi.addons.trace.summary import Seconds, bubble, seconds, traced
from nnmpi.addons.trace.tracing import offsets
from nnmpi.comm import Comm, comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.parallel.mesh import Mesh
from nnmpi.schedules.op import Kind, Op

ONE, TWO = Mesh({"dp": 1, "pp": 1, "tp": 1}), Mesh({"dp": 1, "pp": 2, "tp": 1})


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


class Rank:
    """Events of a rank, given by their times."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.recording = Recording(self.clock)
        self.recording.begin(0)

    def add(self, name: str, began: float, ended: float, micro: int = -1, stage: int = 0) -> "Rank":
        self.clock.time = ended
        self.recording.add(name, began, micro, stage)
        return self

    @property
    def entries(self) -> RankEntries:
        return RankEntries.of(self.recording.rows(self.recording.limit), [])

    @property
    def events(self) -> np.ndarray:
        return self.entries.events


# ---- seconds


def of(table: np.ndarray, rank: int = 0) -> Seconds:
    return Seconds(*(round(x, 9) for x in seconds(table[table["rank"] == rank])))


def test_a_wait_is_divided_when_the_message_was_sent() -> None:
    sender = Rank().add("F", 0, 4, 0).add("SEND_F", 4, 5, 0)
    early = Rank().add("wait F", 1, 6, 0, 1).add("F", 1, 9, 0, 1)
    late = Rank().add("wait F", 5, 6, 0, 1).add("F", 5, 9, 0, 1)
    found = traced([sender.events, early.events], TWO)
    assert of(found) == Seconds(4, 1, 0, 0)
    assert of(found, 1) == Seconds(3, 2, 3, 0)
    assert of(traced([sender.events, late.events], TWO), 1) == Seconds(3, 1, 0, 0)


def test_a_sum_waits_for_the_last_rank_of_its_group() -> None:
    mesh = Mesh({"dp": 2, "pp": 2, "tp": 1})
    came = [1, 3, 4, 2]  # ranks 0 and 2 sum, and so do 1 and 3
    ranks = [Rank().add("sums", t, 5).add("APPLY", 0, 6).events for t in came]
    table = traced(ranks, mesh)
    found = [of(table, rank) for rank in range(4)]
    assert [f.waiting for f in found] == [3, 0, 0, 1]
    assert [f.communicating for f in found] == [1, 2, 1, 2]
    assert [f.computing for f in found] == [2, 4, 5, 3]


def test_an_operation_within_a_pass_ends_the_event_of_the_pass() -> None:
    """With ZeRO 3, where the list goes on within a forward pass by the tape."""
    rank = Rank()

    def takes(seconds: float) -> None:
        rank.clock.time += seconds

    gather = rank.recording.recorded("GATHER", lambda op: takes(2))

    def forward(op: Op) -> None:
        takes(1)
        gather(Op(Kind.GATHER, at=1))
        takes(4)

    rank.recording.begin(0)
    rank.recording.recorded("F", forward)(Op(Kind.F, 0, 0, 0))
    rows = rank.recording.rows(1)
    assert [*zip(rows["began"], rows["ended"], strict=True)] == [(0, 1), (1, 3), (3, 7)]


# ---- bubble


def test_the_bubble_of_a_pipeline_on_time_is_that_of_the_simulator() -> None:
    """GPipe on two ranks with two micro-batches, where messages take no time: (p - 1) / m."""
    first, second = Rank(), Rank()
    for at in (0.0, 20.0):
        first.recording.begin(int(at))
        second.recording.begin(int(at))
        for m in (0, 1):
            first.add("F", at + m, at + m + 1, m)
            second.add("wait F", at + m, at + m + 1, m, 1).add("F", at + m, at + m + 2, m, 1)
        for k, m in enumerate((1, 0)):
            second.add("B", at + 3 + 2 * k, at + 5 + 2 * k, m, 1)
            first.add("B", at + 5 + 2 * k, at + 7 + 2 * k, m)
    found = traced([first.events, second.events], TWO)
    config = Config(pp=2, micro_batches=2, schedule="gpipe")
    known = bubble(found, TWO, config)[0]["bubble"]
    assert known == pytest.approx({"measured": 0.5, "simulated": 0.5, "formula": 0.5})


# ---- clocks and memory


def test_the_offset_of_a_clock_is_found() -> None:
    ahead = [0.0, 1000.0, -50.0]

    def run(comm: Comm) -> np.ndarray:
        clock = Clock()
        return offsets(comm, lambda: ahead[comm.rank] + clock.time)

    np.testing.assert_allclose(threads.run(3, run)[0], ahead, atol=1e-9)
    np.testing.assert_array_equal(offsets(comm_self(), Clock()), [0])


# ---- the file


def test_the_reader_draws_what_was_written(tmp_path: Path) -> None:
    """A forward pass is cut where it waits; the wait ends when the message was sent."""
    first = Rank().add("F", 0, 2, 0).add("SEND_F", 2, 2.5, 0).add("APPLY", 2.5, 3)
    second = Rank().add("wait F", 0.5, 4, 0, 1).add("F", 0, 5, 0, 1).add("APPLY", 5, 6)
    path = tmp_path / "t.json"
    table = traced([first.events, second.events], TWO)
    write(str(path), table, [first.entries, second.entries], TWO, {})
    timeline = TraceFile.read(path).timeline(0)
    spans = [(s.rank, s.kind, s.micro, s.start / 1e3, s.end / 1e3) for s in timeline.spans]
    assert spans == [
        (0, "F", 0, 0, 2),
        (0, "communicate", 0, 2, 2.5),
        (0, "APPLY", -1, 2.5, 3),
        (1, "F", 0, 0, 0.5),
        (1, "wait", 0, 0.5, 2),
        (1, "communicate", 0, 2, 4),
        (1, "F", 0, 4, 5),
        (1, "APPLY", -1, 5, 6),
    ]
