"""What a rank sends in a step, from the states that its steps end in."""

from nnmpi import Config, Trainer
from nnmpi.parallel.step.executor import StepResult, StepState
from nnmpi.run.footprint import Footprint


def test_a_step_counts_where_another_one_of_its_epoch_has_ended() -> None:
    """Without samples, a server's worker may end its first steps in the state of the start."""
    trainer = Trainer(Config(model="mlp:4-4-2", data="synthetic:4:2:8", batch_size=2))
    footprint, counted = Footprint(), []
    for state in (StepState(), StepState(1, 0, 1), StepState(2, 0, 2)):
        footprint.step(trainer.session, StepResult(state, 2, 2.0, 0.0, 0.0, updated=True))
        counted.append(footprint.sent is not None)
    assert counted == [False, False, True]
