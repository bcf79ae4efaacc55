"""Ports of the stages of a pipeline, without training: messages and samples."""

import threading
from collections.abc import Generator

import numpy as np

from nnmpi import nn
from nnmpi.backend import CPU
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.data import Load
from nnmpi.data.loader import Batch
from nnmpi.nn.graph import Axis, Edge
from nnmpi.parallel.model.parts import ModelPart
from nnmpi.parallel.recorder import NO_RECORDER
from nnmpi.parallel.step.channels import Channels, Ports
from nnmpi.parallel.step.executor import NO_SYNC, Executor
from nnmpi.parallel.step.objective import Objective
from nnmpi.parallel.step.outputs import Measured
from nnmpi.parallel.step.ports import Task
from nnmpi.parallel.step.update import Outcome
from nnmpi.schedules.lowering import forward_programs
from nnmpi.schedules.op import Op

ROWS = Edge((Axis(1, True), Axis(3)), "float64", (0, 1), True, 0)


def no_update(step: int) -> Outcome:
    raise AssertionError


def test_evaluation_does_not_run_ahead_of_a_slow_stage() -> None:
    """Of the batches that the second stage has not received, the first one has made one."""
    begun: list[int] = []  # by the first stage
    seen: list[int] = []  # how many, before the second stage began
    ahead = threading.Event()  # is not set by an evaluation that waits

    def loads(rank: int) -> Generator[Load, None, None]:
        if rank == 1:
            ahead.wait(timeout=0.3)
        for i in range(9):
            if rank == 0:
                begun.append(i)
            elif i == 0:
                seen.append(len(begun))
            if len(begun) > 1:
                ahead.set()
            rows = np.arange(4)
            yield Load(rows, [Batch(np.ones((2, 3)), np.zeros(2, int), rows[:2])] * 2, 4)

    def job(comm: Comm) -> float:
        def program(micro_batches: int) -> list[Op]:
            return forward_programs(2, micro_batches)[comm.rank]

        channels = Channels([(ROWS,)], [comm.rank], comm, NO_RECORDER)
        model = nn.Linear(3, 3).to("float64")
        objective = Objective(nn.CrossEntropyLoss(reduction="sum"), {})
        part = ModelPart(model, {comm.rank: model}, boundaries=[(ROWS,)])
        ports = Ports.of(Task(model, objective, CPU), part, channels)
        executor = Executor(
            ports,
            NO_SYNC,
            no_update,
            bool,
            program,
            program,
        )
        row = Measured(objective)
        executor.evaluate(loads(comm.rank), 0, row)
        return int(row.row[0][2])

    assert threads.run(2, job) == [0, 36]
    assert seen[0] <= 1
