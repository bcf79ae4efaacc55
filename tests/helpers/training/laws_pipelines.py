"""What training in a pipeline has to keep beside what every layout keeps: functions of a Comm."""

from itertools import product

import pytest
from helpers.sample import one_in
from helpers.training.pipelined import (
    IN_V,
    MLP,
    MODELS,
    SCHEDULES,
    case_for,
    digits,
    is_same,
    layouts,
    reference,
    run,
    without_clipping,
)

from nnmpi import Config, Trainer
from nnmpi.comm import Comm, launched
from nnmpi.io.output import NullReport

V_LAYOUTS = {2: [(1, 2)], 3: [(1, 3)], 4: [(2, 2)], 6: [(2, 3)]}
"""(dp, pp) by the number of ranks."""


def the_order_of_micro_batches_gives_the_bits_of_one_rank(comm: Comm) -> None:
    """All but gpipe go back over micro-batches in the order of one rank."""
    for case, schedule in one_in(3, product(MODELS.values(), SCHEDULES), "order"):
        fits = without_clipping(case_for(schedule, case, comm.size))
        m = 1 if schedule == "gpipe" else 5
        got = run(comm, **fits, pp=comm.size, schedule=schedule, micro_batches=m)
        is_same(got, reference(comm, **fits, micro_batches=m))


def a_v_has_the_bits_of_interleaved(comm: Comm) -> None:
    """Of the same stages: which rank has one changes nothing, with any sharding of replicas.

    All four on threads with pp = 2; over MPI, and with pp = 3 unless with --all, one of them.
    """
    for dp, pp in V_LAYOUTS.get(comm.size, ()):
        layout = {"dp": dp, "pp": pp}
        fits = without_clipping(case_for("zb-v", MLP, pp))
        cut = ",".join(str(2 * s + 1) for s in range(1, 2 * pp))
        case = {**fits, "cut": cut, "micro_batches": 5, "allreduce": "ring"}
        of_replicas = range(4) if pp == 2 else one_in(4, range(4), "in a v")
        for zero in (0,) if dp == 1 else of_replicas if launched() == 1 else (1,):
            wanted = run(comm, **case, **layout, zero=zero, schedule="interleaved")
            for schedule in IN_V:
                is_same(run(comm, **case, **layout, zero=zero, schedule=schedule), wanted)


def parameters_of_other_stages_say_where_they_are(comm: Comm) -> None:
    for layout in layouts(comm):
        case = case_for("1f1b", MLP, layout["pp"])
        trainer = Trainer(Config(**case, **layout, steps=1), None, digits(), comm)
        for _ in range(2):
            held = {id(p) for p in trainer.part.parameters}
            for path, p in trainer.model.named_parameters():
                if id(p) in held:
                    assert p.array.size == p.grad_array.size if p.has_grad else p.array.size
                    continue
                for read in (lambda p=p: p.array, lambda p=p: p.grad_memory):
                    with pytest.raises(ValueError, match=rf"{path} is in a stage of rank \d along"):
                        read()
            if layout["pp"] > 1:
                with pytest.raises(
                    ValueError, match="read it there, or from a file written by --save"
                ):
                    trainer.model.state_dict()
            if not trainer.step:
                trainer.fit(NullReport())
