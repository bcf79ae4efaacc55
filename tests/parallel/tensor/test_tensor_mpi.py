"""The laws of tensor parallelism over MPI; test_mpi_jobs.py starts the ranks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from helpers.tensor import (
    laws_experts,
    laws_sequence,
    laws_tensor,
    laws_tensor_graphs,
    laws_tensor_layers,
    laws_tensor_loss,
    laws_tensor_ops,
)

from nnmpi.comm import Comm, world

OF_OPS = [*laws_tensor_ops.LAWS, *laws_experts.LAWS]
OF_LAYERS = [*OF_OPS, *laws_tensor_layers.LAWS, *laws_sequence.LAWS]


@contextmanager
def few() -> Iterator[Comm]:
    """Up to four of the ranks: these layers have few channels."""
    comm = world().split(world().rank // 4)
    assert comm is not None
    yield comm
    comm.free()


@pytest.mark.mpi
@pytest.mark.parametrize("law", OF_LAYERS, ids=lambda law: law.__name__)
def test_layers(law: Callable[[Comm], None]) -> None:
    with few() as comm:
        law(comm)


@pytest.mark.mpi
@pytest.mark.parametrize("law", laws_tensor.LAWS, ids=lambda law: law.__name__)
def test_law(law: Callable[[Comm], None]) -> None:
    law(world())


@pytest.mark.mpi
@pytest.mark.parametrize("name", laws_tensor_layers.CASES)
def test_a_sharded_model_equals_one_rank(name: str) -> None:
    with few() as comm:
        laws_tensor_layers.equals_one_rank(comm, name)


@pytest.mark.mpi
@pytest.mark.parametrize("name", laws_tensor_graphs.MODELS)
def test_a_sharded_graph_trains_as_one_rank(name: str) -> None:
    with few() as comm:
        laws_tensor_graphs.trains_as_one_rank(comm, name)


@pytest.mark.mpi
def test_the_sharded_loss_equals_the_ordinary_one() -> None:
    with few() as comm:
        for kind in ("plain", "ties"):
            laws_tensor_loss.equals_the_ordinary_loss(comm, kind, "mean", "float64")
            laws_tensor_loss.evaluation_equals_argmax(comm, kind)
