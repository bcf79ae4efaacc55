"""PowerSGD of weights with several axes."""

from nnmpi import Config, Trainer
from nnmpi.addons.compression.compressed import as_matrix
from nnmpi.addons.planning.paper.rank import traffic
from nnmpi.comm import Comm, thread_ranks
from nnmpi.io.output import NullReport


def test_rows_and_columns_are_few_in_all() -> None:
    assert as_matrix((64, 32, 3, 3)) == (64, 288)
    assert as_matrix((3, 3, 32, 64)) == (288, 64)
    assert as_matrix((64, 3, 3, 32)) == (192, 96)
    assert (as_matrix((10, 256)), as_matrix((32,))) == ((10, 256), (1, 32))


def test_a_run_of_convolutions_sends_what_its_plan_says() -> None:
    """Weights of convolutions have another order in memory once they are trained."""

    def run(comm: Comm) -> None:
        config = Config(model="digits-cnn", data="digits", compress="powersgd:4", steps=3)
        with Trainer(config, comm=comm) as trainer:
            trainer.fit(NullReport())
            said = traffic(trainer.arrangement, comm.rank, config.batch_size)
            assert trainer.strategy.traffic.sent == said
            assert said["dp"].bytes < 20_000  # of 85,928 bytes

    thread_ranks.run(2, run)
