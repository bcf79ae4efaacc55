"""What training in a pipeline has to keep, on any number of ranks: functions of a Comm.

Each runs on all ranks at once. `test_pipelines.py` runs them on threads, `test_pipelines_mpi.py`
over MPI.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.training import laws_pipeline_models as models
from helpers.training.laws_training import same_on_all
from helpers.training.pipelined import (
    CNN,
    MICRO_BATCHES,
    MLP,
    MODELS,
    RECOMPUTED,
    SCHEDULES,
    Heard,
    Options,
    case_for,
    contents,
    digits,
    equals,
    is_same,
    layouts,
    reference,
    run,
    some,
    tell,
    without_clipping,
)

import nnmpi
from nnmpi import Config, Trainer
from nnmpi.comm import Comm, comm_self
from nnmpi.run.report import NullReport
from nnmpi.run.trainer import DivergedError


def schedule_trains_as_one_rank(comm: Comm, schedule: str, case: Options) -> None:
    """Uneven batches, BatchNorm and Dropout; clipping and momentum."""
    for layout in layouts(comm):
        for m in some(comm, MICRO_BATCHES):
            fits = case_for(schedule, case, layout["pp"])
            got = run(comm, **fits, **layout, schedule=schedule, micro_batches=m)
            equals(comm, got, reference(**fits, micro_batches=m))


def every_schedule_trains_as_one_rank(comm: Comm) -> None:
    for schedule in SCHEDULES:
        for case in MODELS.values():
            schedule_trains_as_one_rank(comm, schedule, case)


def every_optimizer_trains_as_one_rank(comm: Comm) -> None:
    for optimizer in some(comm, ("sgd", "adam", "adamw")):
        more = {"optimizer": optimizer, "weight_decay": 0.01, "clip_norm": 0.3, "micro_batches": 3}
        for layout in layouts(comm):
            case = {**case_for("1f1b", CNN, layout["pp"]), **more}
            for allreduce in ("shared", "ring") if layout["dp"] > 1 else ("auto",):
                got = run(comm, **case, **layout, allreduce=allreduce, bucket_mb=0.01)
                equals(comm, got, reference(**case))


def many_micro_batches_train_as_on_one_rank(comm: Comm) -> None:
    """One for each sample: ranks along dp have none in some."""
    for schedule in some(comm, ("gpipe", "interleaved", "zb-h1")):
        for layout in layouts(comm):
            case = {**case_for(schedule, CNN, layout["pp"]), "micro_batches": 24}
            equals(comm, run(comm, **case, **layout, schedule=schedule), reference(**case))


def the_order_of_micro_batches_gives_the_bits_of_one_rank(comm: Comm) -> None:
    """All but gpipe go back over micro-batches in the order of one rank."""
    for case in MODELS.values():
        for schedule in SCHEDULES:
            fits = without_clipping(case_for(schedule, case, comm.size))
            m = 1 if schedule == "gpipe" else 5
            got = run(comm, **fits, pp=comm.size, schedule=schedule, micro_batches=m)
            is_same(got, reference(**fits, micro_batches=m))


def recompute_changes_no_bits(comm: Comm) -> None:
    """Neither of parameters nor of running statistics, which are tracked once."""
    for case in MODELS.values():
        for schedule in some(comm, RECOMPUTED):
            for layout in layouts(comm):
                fits = without_clipping(case_for(schedule, case, layout["pp"]))
                options = {**fits, **layout, "schedule": schedule, "micro_batches": 4}
                is_same(run(comm, **options, recompute=True), run(comm, **options))


def verify_finds_no_difference(comm: Comm) -> None:
    for schedule in some(comm, SCHEDULES) if comm.size > 1 else ():
        for layout in layouts(comm):
            for dtype in ("float64", "float32"):
                fits = case_for(schedule, CNN, layout["pp"])
                options = {**fits, **layout, "schedule": schedule, "micro_batches": 3, "steps": 6}
                got = run(comm, **options, dtype=dtype, verify=True)
                steps = [e for e in got.events if e["event"] == "verify"]
                assert [e["step"] for e in steps] == [1, 2, 3, 4, 5, 6]
                assert all(e["replicas_equal"] for e in steps)


def what_one_layout_saves_another_loads(comm: Comm) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = tell(comm, str(Path(folder) / "m.safetensors"))
        saves = layouts(comm)[-1]
        case = case_for("1f1b", CNN, max(layout["pp"] for layout in layouts(comm)))
        got = run(comm, **case, **saves, micro_batches=2, save=path)
        comm.barrier()
        found = nnmpi.load(path)
        assert found.keys() == got.state.keys()
        for name, array in got.state.items():
            np.testing.assert_array_equal(found[name], array, err_msg=name, strict=True)
        own = {"pp": 1, "dp": 1}
        for where, layout in ((comm_self(), own), *((comm, layout) for layout in layouts(comm))):
            config = Config(**case, **layout, dtype="float64", load=path, seed=5)
            trainer = Trainer(config, None, digits(), where)
            assert trainer.strategy.entries.sha256() == got.done["parameters_sha256"]
            for name, array in contents(trainer).items():
                np.testing.assert_array_equal(array, found[name], err_msg=name, strict=True)
            trainer.close()
        comm.barrier()


def parameters_of_other_stages_say_where_they_are(comm: Comm) -> None:
    for layout in layouts(comm):
        case = case_for("1f1b", MLP, layout["pp"])
        trainer = Trainer(Config(**case, **layout, steps=1), None, digits(), comm)
        for _ in range(2):
            held = {id(p) for p in trainer.part.parameters}
            for path, p in trainer.model.named_parameters():
                if id(p) in held:
                    assert p.data.size == p.grad.size if p.has_grad else p.data.size
                    continue
                for read in (lambda p=p: p.data, lambda p=p: p.slot):
                    with pytest.raises(ValueError, match=rf"{path} is in a stage of rank \d along"):
                        read()
            if layout["pp"] > 1:
                with pytest.raises(ValueError, match="read it there, or from a file of --save"):
                    trainer.model.state_dict()
            if not trainer.step:
                trainer.fit(NullReport())


class StopsAt(Heard):
    """One rank wants to stop after its second step."""

    def __init__(self, trainer: Trainer, wanting: bool) -> None:
        super().__init__()
        self._trainer, self._wanting = trainer, wanting

    def progress(self, step: int, total: int, loss: float, samples_per_second: float) -> None:
        if step == 2 and self._wanting:
            self._trainer.stop()


def all_stop_when_one_wants_to(comm: Comm) -> None:
    for layout in layouts(comm):
        for wanting in {0, comm.size - 1}:
            config = Config(**case_for("1f1b", MLP, layout["pp"]), **layout, batch_size=20)
            trainer = Trainer(config, None, digits(), comm)
            event = trainer.fit(StopsAt(trainer, comm.rank == wanting))
            assert event["event"] == "stopped"
            assert event["steps"] == (2 if comm.size == 1 else 3)
            assert same_on_all(comm, f"{event['steps']} {event['parameters_sha256']}")


def a_loss_that_is_no_number_ends_all_ranks_alike(comm: Comm) -> None:
    for schedule in some(comm, SCHEDULES):
        for layout in layouts(comm):
            case = {**case_for(schedule, MLP, layout["pp"]), "lr": 1e30, "clip_norm": None}
            with pytest.raises(DivergedError) as ended:
                run(comm, **case, **layout, schedule=schedule, dtype="float32")
            assert same_on_all(comm, str(ended.value))


LAWS: list[Callable[[Comm], None]] = [
    every_schedule_trains_as_one_rank,
    every_optimizer_trains_as_one_rank,
    many_micro_batches_train_as_on_one_rank,
    the_order_of_micro_batches_gives_the_bits_of_one_rank,
    recompute_changes_no_bits,
    models.any_model_recomputes_in_one_stage,
    models.outputs_in_any_memory_are_sent,
    models.frozen_layers_stay,
    verify_finds_no_difference,
    what_one_layout_saves_another_loads,
    parameters_of_other_stages_say_where_they_are,
    all_stop_when_one_wants_to,
    a_loss_that_is_no_number_ends_all_ranks_alike,
    models.a_step_that_is_not_finite_is_left_out_by_all,
]
