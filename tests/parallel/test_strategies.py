"""What strategies.py builds: each strategy goes on from any state, and depends on nothing else."""

from typing import Any

import pytest

from nnmpi import Config, Trainer
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.parallel.step.executor import StepState

STRATEGIES: dict[str, dict[str, Any]] = {
    "replicas": {"allreduce": "ring"},
    "node": {"allreduce": "shared"},
    "reproducible": {"reproducible": True, "slices": 4},
    "pipeline": {"pp": 2, "micro_batches": 3},
    "pipedream": {"pp": 2, "schedule": "pipedream"},
    "server": {"servers": 1},
}
IRIS = {"model": "iris-mlp", "data": "iris", "batch_size": 25, "optimizer": "sgd", "momentum": 0.0}


def steps(comm: Comm, options: dict[str, Any], start: StepState) -> tuple[Any, ...]:
    """The steps from a state to the end of its epoch, from the weights of the seed."""
    trainer = Trainer(Config(**IRIS, **options, dtype="float64"), comm=comm)
    trainer.model.train()
    results = list(trainer.strategy.steps(trainer.train, start))
    digest = trainer.strategy.full_state.sha256()
    trainer.close()
    return [r.state for r in results][-1], sum(r.samples for r in results), digest


@pytest.mark.parametrize("name", STRATEGIES)
def test_an_epoch_goes_on_from_any_of_its_batches(name: str) -> None:
    """120 samples: 4 batches of 25 and one of 20."""
    digests = set()
    for start, samples in (
        (StepState(0, 0, 0), 120),
        (StepState(3, 0, 3), 45),
        (StepState(8, 1, 3), 45),
    ):
        for state, seen, digest in threads.run(2, steps, STRATEGIES[name], start):
            assert state == (start.step + 5 - start.batch, start.epoch + 1, 0)
            assert seen == samples
            digests.add(digest)
    assert len(digests) == 3  # other batches, in another order


def test_only_the_first_rank_decides_whether_to_save(tmp_path: Any) -> None:
    def rank(comm: Comm, writer: int) -> None:
        save = str(tmp_path / f"{writer}.safetensors") if comm.rank == writer else None
        Trainer(Config(**IRIS, steps=1, save=save), comm=comm).fit()

    for writer in (0, 1):
        threads.run(2, rank, writer)
    assert [path.name for path in tmp_path.iterdir()] == ["0.safetensors"]


def test_a_log_that_one_rank_cannot_open_ends_all(tmp_path: Any) -> None:
    def rank(comm: Comm) -> str:
        config = Config(**IRIS, steps=1, log=str(tmp_path / "missing" / "log"))
        trainer = Trainer(config, comm=comm)
        with pytest.raises((ValueError, RuntimeError)) as raised:
            trainer.fit()
        return type(raised.value).__name__

    assert threads.run(2, rank) == ["ValueError", "OtherRankError"]
