"""--verify beside a layout whose ranks hold their own stages only."""

import copy
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.runs import rows
from helpers.tensor.elsewhere import keep, stage_of

import nnmpi
from nnmpi import Config, nn
from nnmpi.backend import CPU
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.data import Loader, Split, Standardiser
from nnmpi.dtypes import HALVES
from nnmpi.nn.state import assign
from nnmpi.nn.tracing import trace
from nnmpi.parallel import plan
from nnmpi.parallel.arrangement.arrange import alone, arrange
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.checks.verify import BOUNDS, SUBJECTS, VerifyError
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.model.entries import Entries
from nnmpi.parallel.model.parts import ModelPart
from nnmpi.parallel.step.executor import StepResult, StepState
from nnmpi.parallel.step.objective import Objective
from nnmpi.parallel.step.ports import Task
from nnmpi.parallel.strategy import StepControl, Strategy, TrainSpec
from nnmpi.run.setup.optimizers import optimizer_of

WHOLE = [dtype for dtype in BOUNDS if dtype not in HALVES]
"""Parameters of 16 bits have masters, of which a stage that is only shown has none."""

Spoil = Callable[[int, nn.Module], None]
"""Changes the model of a rank after the second step."""


def model() -> nn.Sequential:
    """Two stages, of 2 and of 3 units; units 1 and 2 share a weight."""
    tied = nn.Linear(6, 6), nn.Linear(6, 6)
    made = nn.Sequential(nn.BatchNorm1d(6), *tied, nn.Tanh(), nn.Linear(6, 3))
    tied[1].weight = tied[0].weight
    made.seed = 3
    made[4].weight.data *= 0.1  # its gradient is the largest of all
    return made


class Staged:
    """Each rank trains a whole model out of sight, and shows what its stage has of it."""

    def __init__(self, layout: Layout, spec: TrainSpec, build: Any, spoil: Spoil) -> None:
        whole, self._shown = copy.deepcopy(spec.task.model), spec.task.model
        task = spec.task._replace(model=whole)
        part = ModelPart.whole(whole)
        one = alone(spec.arrangement)
        inner = spec._replace(
            task=task, part=part, parameters=[*whole.parameters()], arrangement=one, twin=None
        )
        self._inner: Strategy = build(Layout.of_one_rank(), inner)
        held = stage_of(layout.all.rank, 0, 2)
        keep(self._shown, held)
        self.layout, self._spoil = layout, spoil
        self.entries = Entries.of_model(self._shown, layout.all, held)
        has = self.entries.parts.has
        self.optimizer = spec.optimizer([p for p in self._shown.parameters() if has(p)])

    def steps(self, loader: Loader, start: StepState) -> Generator[StepResult, None, None]:
        for done in self._inner.steps(loader, start):
            self._copy()
            if done.state.step == 2:
                self._spoil(self.layout.all.rank, self._shown)
            yield done

    def _copy(self) -> None:
        """Values, gradients and buffers of this rank's stage."""
        pairs = zip(self._inner.entries, self._shown.tensors(), strict=True)
        gradients = {p.place.path: p.grad for p in self._inner.optimizer.parameters}
        for (entry, (_, tensor)), held in zip(pairs, self.entries.parts.held, strict=True):
            if held:
                assign(tensor, entry.value)
                if isinstance(tensor, nn.Parameter):
                    tensor.grad = gradients[tensor.place.path]

    def close(self) -> None:
        self._inner.close()
        self.layout.free()


def nothing(rank: int, shown: nn.Module) -> None:
    """Every rank shows what it has trained."""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs five steps on two stages; returns each rank's events and largest gradients."""
    chosen = plan.STRATEGIES["replicas"]

    def staged(spoil: Spoil, layout: Layout, spec: TrainSpec) -> Any:
        if layout.all.size == 1:
            return chosen(layout, spec)
        return Staged(layout, spec, chosen, spoil)

    def rank(comm: Comm, dtype: str) -> list[tuple[dict[str, Any], list[float]]]:
        config = Config(verify=True, dtype=dtype, clip_norm=0.1, batch_size=14)
        events: list[Any] = []
        control = StepControl(lambda step: 1.0, lambda: False, lambda: 5, events.append)

        def spec(twin: TrainSpec | None) -> TrainSpec:
            task = Task(model().to(dtype), Objective(nn.CrossEntropyLoss(reduction="sum"), {}), CPU)
            make = optimizer_of(config, None, comm)
            part, parameters = ModelPart.whole(task.model), [*task.model.parameters()]
            a = arrangement if twin else alone(arrangement)
            return TrainSpec(task, part, parameters, a, make, control, twin=twin)

        graph = trace(model(), lambda n: ((nnmpi.tensor(np.zeros((n, 6))),), {}), "float64")
        arrangement = arrange(config, Cluster.on_paper(2), graph)
        twin = spec(None)
        split = Split(rows()[0].astype("float32"), rows()[1])
        loader = Loader(split, 14, standardiser=Standardiser.of(split), dtype=dtype)
        strategy = plan.build(Layout.of(config, comm), spec(twin))
        found = []
        for _ in strategy.steps(loader, StepState()):
            largest = [float(np.abs(p.grad).max()) for p in twin.task.model.parameters()]
            found.append((events[-1], largest))
        strategy.close()
        return found

    def start(dtype: str, spoil: Spoil = nothing) -> Any:
        monkeypatch.setitem(plan.STRATEGIES, "replicas", partial(staged, spoil))
        return threads.run(2, rank, dtype)

    return start


@pytest.mark.parametrize("dtype", WHOLE)
def test_stages_that_train_as_one_rank_does_are_accepted(run: Any, dtype: str) -> None:
    for found in run(dtype):
        assert len(found) == 5
        for event, _ in found:
            assert all(event[f"{subject}_relative"] == 0 for subject in SUBJECTS)


def shift(rank: int, shown: nn.Module) -> None:
    if rank == 1:
        shown[4].bias.data += 1e-3


def track(rank: int, shown: nn.Module) -> None:
    if rank == 0:
        shown[0].running_mean += 1


def untie(rank: int, shown: nn.Module) -> None:
    if rank == 1:
        row = shown[2].weight.data[0]
        row[...] = np.nextafter(row, row.dtype.type(9))


WRONG: dict[Spoil, str] = {
    shift: "parameters of the layout differ",
    track: "buffers of the layout differ",
    untie: "parameters are not the same on all ranks",
}


@pytest.mark.parametrize("dtype", WHOLE)
@pytest.mark.parametrize("spoil", WRONG)
def test_what_one_stage_does_wrong_is_found(run: Any, dtype: str, spoil: Spoil) -> None:
    with pytest.raises(VerifyError, match=f"step 2: {WRONG[spoil]}"):
        run(dtype, spoil)


def test_gradients_are_set_against_the_largest_of_the_whole_model(run: Any) -> None:
    """Those of the stage that is off are the smaller ones."""

    def off(rank: int, shown: nn.Module) -> None:
        if rank == 0:
            shown[1].bias.grad += 1e-13

    event, largest = run("float64", off)[0][1]
    assert event["gradients_absolute"] == pytest.approx(1e-13, rel=1e-2)
    assert event["gradients_relative"] == event["gradients_absolute"] / max(largest)
    assert max(largest[:4]) < max(largest)  # units 0 and 1
