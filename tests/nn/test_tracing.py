"""What a graph cannot show: the module with that `forward` is taken whole, and a note says why."""

import tracemalloc
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pytest

import nnmpi
from nnmpi import Config, Tensor, nn
from nnmpi.comm import Comm, thread_ranks
from nnmpi.nn import graph_recorder as recorder
from nnmpi.nn.graph import Graph
from nnmpi.nn.tracing import trace
from nnmpi.run.trainer import Trainer

Between: TypeAlias = Callable[[Any, Tensor], Tensor]


class Two(nn.Module):
    """Two layers, and something between them."""

    def __init__(self, between: Between) -> None:
        self.first, self.last, self.between = nn.Linear(3, 3), nn.Linear(3, 3), between
        self.scale = nn.Parameter(np.ones(3))
        self.scale.requires_grad = False
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.between(self, self.first(x)))
        return y


def traced(model: nn.Module) -> Graph:
    return trace(model, lambda n: ((nnmpi.tensor(np.zeros((n, 3))),), {}), "float64")


def writes(model: Two, y: Tensor) -> Tensor:
    mask = (y > 0).astype("float64")
    mask[:, :2] = 0.0
    return y * mask


def adds_in_place(model: Two, y: Tensor) -> Tensor:
    mask = (y > 0).astype("float64")
    mask += 1
    return y * mask


def writes_to_a_parameter(model: Two, y: Tensor) -> Tensor:
    model.scale[:2] = 0.0
    return y * model.scale


def reads_without_gradients(model: Two, y: Tensor) -> Tensor:
    with nnmpi.no_grad():
        is_large = float(abs(y).max()) > 1
    return y * 2 if is_large else y


def runs_without_gradients(model: Two, y: Tensor) -> Tensor:
    with nnmpi.no_grad():
        z: Tensor = model.last(y)
    return y * z


def detaches(model: Two, y: Tensor) -> Tensor:
    return y * y.detach()


def reads_detached(model: Two, y: Tensor) -> Tensor:
    return y * 2 if y.detach().numpy().any() else y


def counts(model: Two, y: Tensor) -> Tensor:
    model.calls += 1
    return y if model.calls <= 3 else y * 2


def doubles(model: Two, y: Tensor) -> Tensor:
    return y * 2


NOTES: dict[Between, str] = {
    writes: recorder.WRITES,
    adds_in_place: recorder.WRITES,
    writes_to_a_parameter: recorder.WRITES,
    reads_without_gradients: recorder.NO_GRAD,
    runs_without_gradients: recorder.NO_GRAD,
    detaches: recorder.DETACHES,
    reads_detached: recorder.DETACHES,
    counts: recorder.CHANGES,
}


@pytest.mark.parametrize("between", NOTES)
def test_a_module_is_taken_whole(between: Between) -> None:
    """It alone: what is around it is looked into."""
    graph = traced(nn.Sequential(nn.Linear(3, 3), Two(between)))
    assert [node.name for node in graph.nodes] == ["0", "1"]
    assert graph.notes == (f"1: {NOTES[between]}",)


def test_a_forward_set_on_an_instance_is_called_and_kept() -> None:
    model = nn.Sequential(Two(doubles), nn.Linear(3, 3))
    own, called = model[0].forward, list[int]()

    def forward(x: Tensor) -> Any:
        called.append(len(x))
        return own(x)

    object.__setattr__(model[0], "forward", forward)
    graph = traced(model)
    assert [node.name for node in graph.nodes] == ["0.first", "multiply", "0.last", "1"]
    assert called == [2, 3, 6]
    assert vars(model[0])["forward"] is forward
    assert "forward" not in vars(model[1])


class Doubling(nn.Module):
    """Its input gets another array."""

    def forward(self, x: Tensor) -> Tensor:
        x.data = x.data * 2
        return x


def test_a_tensor_that_gets_another_array_lies_in_that() -> None:
    graph = traced(nn.Sequential(nn.Linear(3, 3), Doubling(), nn.Linear(3, 3)))
    assert [edge.memory for edge in graph.edges] == [0, 1, 1, 3]


def test_a_pass_takes_no_memory() -> None:
    """Neither for weights, of 4 TB, nor for what is computed with them."""
    wide = 1 << 20
    model = nn.Sequential(nn.Linear(wide, wide), nn.GELU(), nn.LayerNorm(wide), nn.ReLU())
    zeros = np.broadcast_to(np.float32(0), (6, 64, wide))
    tracemalloc.start()
    graph = trace(model, lambda n: ((Tensor(zeros[:n]),), {}), "float32")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert graph.variables[0].size == 1 << 40
    assert graph.kept[1].bytes(6) == 6 * 64 * wide * 4
    assert peak < 100_000_000


class Branching(nn.Module):
    """Its control flow depends on numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return nnmpi.exp(x) if x.data.max() < 1 else x


def test_a_module_that_branches_on_numbers_gets_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = (8, 100, 100, 30)
    model = nn.Sequential(nn.Linear(8, 100), Branching(), nn.Linear(100, 30))

    def graph() -> Graph:
        def zeros(n: int) -> tuple[tuple[Tensor], dict[str, Any]]:
            return (nnmpi.tensor(np.zeros((n, 8))),), {}

        return trace(model, zeros, "float64")

    assert [node.kind for node in graph().nodes] == ["Linear", "Branching", "Linear"]
    monkeypatch.setattr("nnmpi.nn.tracing.memory_available", lambda: 6 * 8 * sum(sizes))
    graph()
    monkeypatch.setattr("nnmpi.nn.tracing.memory_available", lambda: 6 * 8 * sum(sizes) - 1)
    with pytest.raises(MemoryError, match=r"0\.0 GB, and 0\.0 GB are free"):
        graph()


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


class Adds(nn.Module):
    def __init__(self) -> None:
        self.layer = nn.Linear(3, 3)

    def forward(self, pair: Pair) -> Tensor:
        y: Tensor = pair.left + self.layer(pair.right)
        return y


def times(forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: forward(x) * 2


def model_of_blocks() -> nn.Module:
    own = nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    for module in own:
        object.__setattr__(module, "forward", times(module.forward))
    blocks = (Two(between) for between in (writes, runs_without_gradients, detaches, counts))
    return nn.Sequential(*own, *blocks, nn.Linear(3, 2))


@pytest.mark.parametrize("layout", [{"pp": 2}, {"tp": 2}])
def test_what_is_taken_whole_trains_as_on_one_rank(layout: dict[str, int]) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((24, 3)), rng.integers(0, 2, 24)

    def train(comm: Comm, layout: dict[str, int]) -> tuple[float, float]:
        config = Config(batch_size=8, steps=6, dtype="float64", quiet=True, **layout)  # type: ignore[arg-type]
        result = Trainer(config, model_of_blocks, (x, y, x, y), comm).fit()
        return result["loss"], result["test_loss"]

    (one,) = thread_ranks.run(1, train, {})
    for found in thread_ranks.run(2, train, layout):
        assert np.allclose(found, one, rtol=1e-12)


def test_a_named_tuple_is_an_argument() -> None:
    model = Two(lambda model, y: model.adds(Pair(y, y * 2)))
    setattr(model, "adds", Adds())  # noqa: B010
    graph = traced(model)
    assert [n.name for n in graph.nodes] == ["first", "multiply", "adds.layer", "add", "last"]
    (call, _) = graph.calls
    assert type(call.arguments[0][0]) is Pair


def test_an_argument_that_is_not_a_number() -> None:
    graph = traced(Two(lambda model, y: nnmpi.where(y > 1e9, float("nan"), y)))
    assert graph.notes == ()


def test_attributes_are_as_they_were() -> None:
    model = Two(counts)
    before = [dict(vars(m)) for m in model.modules()]
    traced(model)
    assert [dict(vars(m)) for m in model.modules()] == before
    assert model.calls == 0
