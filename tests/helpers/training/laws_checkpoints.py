"""What a run keeps that is resumed from a checkpoint: functions of a Comm.

A run writes a checkpoint in its middle and goes on; another Trainer resumes from it.
"""

from typing import Any

from helpers.once import folder
from helpers.sample import one_in
from helpers.training import laws_snapshot as laws
from helpers.training.acts import SavesAt
from helpers.training.laws_resume import OPTIMIZERS, build
from helpers.training.pipelined import Heard, contents, digits
from helpers.training.pipelined import Options as Case

from nnmpi import Config, Trainer
from nnmpi.comm import Comm, comm_self, launched
from nnmpi.io.output import Event, NullReport


def saves_to(directory: str) -> laws.Act:
    """Writes a checkpoint."""
    return lambda trainer: trainer.save_checkpoint(directory)


def resumed(comm: Comm, directory: str, options: laws.Options) -> laws.Ran:
    """The rest of a run, from its newest checkpoint."""
    watch = laws.Watch(laws.nothing, laws.STEPS)
    config = Config(**{**laws.COMMON, **options})
    return laws.fitted(
        Trainer(config, build, comm=comm, callbacks=[watch], resume=directory), watch
    )


def the_same_ranks_go_on_with_the_same_bits(comm: Comm) -> None:
    """In any layout, whichever the optimizer; over MPI in every second one."""
    found = [*enumerate(laws.rows(comm.size))][:: 1 if launched() == 1 else 2]
    for k, row in one_in(3, found, "same ranks"):
        options = {**OPTIMIZERS[k % len(OPTIMIZERS)], **row.options}
        with folder(comm) as name:
            wanted = laws.run(comm, options, saves_to(name), row.snapshot_at)
            laws.same(resumed(comm, name, options), wanted, row.snapshot_at)


def other_ranks_equal_one_rank(comm: Comm) -> None:
    """From a checkpoint of all ranks to one rank, and from one rank to all, in other layouts."""
    _equal_one_rank(comm, one_in(2, _other_layouts(comm)[1::3], "other ranks"))


def other_ranks_equal_one_rank_in_any_layout(comm: Comm) -> None:
    _equal_one_rank(comm, _other_layouts(comm))


def _other_layouts(comm: Comm) -> list[laws.Row]:
    return [row for row in laws.rows(comm.size) if laws.same_rules(row, laws.LAYOUTS[0])]


def _equal_one_rank(comm: Comm, layouts: list[laws.Row]) -> None:
    options = OPTIMIZERS[1]
    with folder(comm) as alone:
        if comm.rank == 0:
            laws.run(comm_self(), options, saves_to(alone))
        for row in layouts:
            way = {**options, **row.options}
            with folder(comm) as name, folder(comm) as own:
                laws.near(
                    resumed(comm, alone, {**way, "checkpoint_dir": own}), laws.one_rank(options)
                )
                laws.run(comm, way, saves_to(name), row.snapshot_at)
                if comm.rank == 0:
                    laws.near(resumed(comm_self(), name, options), laws.one_rank(options))


def reproducible_keeps_its_bits(comm: Comm) -> None:
    """From all ranks to one."""
    options = {**OPTIMIZERS[1], "reproducible": True, "slices": 8, "micro_batches": 1}
    with folder(comm) as name:
        laws.run(comm, options, saves_to(name))
        if comm.rank == 0:
            laws.same(resumed(comm_self(), name, options), laws.one_rank(options), laws.MIDDLE)
        comm.barrier()


class Stopper:
    """Suspends a run after a step, and counts what it has heard."""

    def __init__(self, at: int) -> None:
        self.at, self.steps, self.epochs = at, 0, 0

    def on_step(self, trainer: Trainer, event: Event) -> None:
        self.steps += 1
        if event["step"] == self.at and trainer.comm.rank == trainer.comm.size - 1:
            trainer.suspend()

    def on_epoch(self, trainer: Trainer, event: Event) -> None:
        self.epochs += 1

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "epochs": self.epochs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.epochs = state["steps"], state["epochs"]


def a_run_that_is_suspended_goes_on(comm: Comm) -> None:
    """One rank asks for it; all end after the same step, and go on with the same bits."""
    options = {**OPTIMIZERS[1], **laws.RING, "save_every": "2"}
    wanted = laws.run(comm, {**options, "save_every": None})
    with folder(comm) as name:
        first, second = Stopper(laws.MIDDLE), Stopper(0)
        config = Config(**{**laws.COMMON, **options, "checkpoint_dir": name})
        trainer = Trainer(config, build, comm=comm, callbacks=[first])
        done = trainer.fit(NullReport())
        assert (done["event"], done["steps"]) == ("suspended", laws.MIDDLE)
        trainer.close()
        trainer = Trainer(config, build, comm=comm, callbacks=[second], resume=name)
        done = trainer.fit(NullReport())
        assert done["parameters_sha256"] == wanted.done["parameters_sha256"]
        assert (second.steps, second.epochs) == (laws.STEPS, len(wanted.epochs))
        trainer.close()
        again = Trainer(config, build, comm=comm, callbacks=[second], resume=name)
        assert again.resumed.is_over
        again.close()


# ---- rows of the table of conformance


def a_row_goes_on_with_the_same_bits(case: Case, at: int, comm: Comm) -> None:
    """From a checkpoint after that step of ten: the losses and events of the rest of the run, all
    values and the digest."""
    options = {"dtype": "float64", "epochs": 2, "batch_size": 24, **case}
    model, given = options.pop("build", None), options.pop("given", digits)
    with folder(comm) as name:
        ran: list[tuple[Heard, Trainer]] = []
        for callbacks, directory in (([SavesAt(at, name)], None), ([], name)):
            made = Config(**options), model, given(), comm
            trainer = Trainer(*made, callbacks=callbacks, resume=directory)
            heard = Heard()
            trainer.fit(heard)
            ran.append((heard, trainer))
        (before, one), (after, two) = ran
        assert before.losses[at:] == after.losses
        a, b = contents(one), contents(two)
        assert a.keys() == b.keys()
        assert all(a[key].tobytes() == b[key].tobytes() for key in a)
        epochs = [[facts_of(e) for e in heard.events[1:]] for heard in (before, after)]
        assert epochs[0][-len(epochs[1]) :] == epochs[1]
        one.close()
        two.close()


TIMES = ("seconds", "samples_per_second", "epoch_samples_per_second", "checkpoints", "measured")


def facts_of(event: Event) -> Event:
    """What an event says besides times."""
    return {k: v for k, v in event.items() if k not in TIMES and "tokens" not in k}
