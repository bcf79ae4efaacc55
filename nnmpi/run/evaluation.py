"""Evaluates during training: after epochs, and with --evaluate-every between steps."""

import numpy as np

from nnmpi.io.output import Event
from nnmpi.io.output.pace import tested
from nnmpi.run import end
from nnmpi.run.calls import agree, call
from nnmpi.run.training import Training


def evaluate(trainer: Training) -> Event:
    """Returns the loss and the metrics on the test split, such as {"test_loss": 0.3, "accuracy":
    0.9}; every rank calls it. Raises DivergedError if the loss is not finite."""
    setup, test = trainer.setup, trainer.session.evaluate()
    end.check_finite(trainer.session, "test loss", test.mean_loss, trainer.run.state.step)
    return tested(setup.dataset, setup.loss, test)


def evaluate_step(trainer: Training) -> None:
    """Evaluates the model after a step (--evaluate-every) and reports the result. At the end of an
    epoch it does nothing, since the epoch's evaluation follows."""
    run = trainer.run
    if run.state.batch == 0 or not run.has_more:
        return
    run.measured = evaluate(trainer)
    event = evaluation_event(trainer)
    run.report_event("evaluation", event)
    call(trainer, "on_evaluate", event)
    agree(trainer)


def evaluation_event(trainer: Training) -> Event:
    """Returns the event of the evaluation after the last step, which the log gets for one within an
    epoch, and the callback on_evaluate for each."""
    run = trainer.run
    at = {"step": run.state.step, "steps": run.total_steps, "epoch": run.position}
    measured = {key: value for key, value in run.measured.items() if key != "loss"}
    return {"event": "evaluation", **at, **measured, "seconds": run.pace.seconds}


def requests(trainer: Training) -> list[bool]:
    """Returns whether some rank wants to stop the run, to suspend it, to write a checkpoint; equal
    on all ranks. While steps are repeated after the loss of a rank, ranks cannot ask for a stop."""
    run, is_due = trainer.run, trainer.checkpoints.is_due()
    # a sum, so that all ranks see the same: a flag of one rank alone must not end a loop there
    may_stop = run.is_stopped or not run.is_behind
    stops = run.stop_requested and may_stop, run.suspend_requested and may_stop
    row = np.array([*stops, is_due], float)
    trainer.comm.all_reduce(row, "doubling")
    wanted: list[bool] = (row > 0).tolist()
    return wanted
