"""PipeDream: how a run ends, what it does not keep, and what is refused."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.training.delayed_updates import MLP, Noted, check, options, train
from helpers.training.served import clouds

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import NullReport
from nnmpi.parallel import strategies
from nnmpi.parallel.strategy import NotFiniteError

# ---- the end of a run


@pytest.mark.one_in(3)
@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("after", [1, 4, 8, 10])
def test_a_rank_that_wants_to_stop_ends_all_when_the_pipeline_is_empty(p: int, after: int) -> None:
    """The last stage learns of it in the next forward pass of that rank, and all stages in its
    backward pass; what the first one has started is completed."""
    for rank in range(p):
        config = Config(**options(MLP, p, epochs=2))
        known = after + p - 1 - rank  # the next forward pass of that rank
        last = min(known + p - 1, 9) if known < 10 else 9
        for found in check(config, p, (rank, after)):
            assert found.result["event"] == "stopped"
            assert found.result["steps"] == (after if p == 1 else last + 1)


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_error_on_one_rank_ends_all(failing: int) -> None:
    ended = list[str]()

    def rank(comm: Comm) -> None:
        def after(step: int) -> None:
            if (comm.rank, step) == (failing, 3):
                raise RuntimeError("no more")

        try:
            Trainer(Config(**options(MLP, 3)), comm=comm).fit(Noted(after))
        except BaseException as error:
            ended.append(type(error).__name__)
            raise

    with pytest.raises(RuntimeError, match="no more"):
        threads.run(3, rank)
    assert sorted(ended) == ["AbortedError", "AbortedError", "RuntimeError"]


class Root(nn.Module):
    """max(0, 0.2 - x)^1/2, whose gradient is NaN where x is above 0.2."""

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        return nnmpi.sqrt(nn.ReLU()(0.2 - x))


class NotNumber(nn.Module):
    """NaN in training."""

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        return x * np.nan if self.training else x


def mlp_with(*kinds: type[nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(
        nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), *(kind() for kind in kinds), nn.Linear(8, 3)
    )


NOT_FINITE = {
    "gradient": (
        mlp_with(Root),
        {"lr": 0.1, "cut": "2,4"},
        r"stage [01]: the squared norm of the gradient became nan at step 1 with learning rate "
        r"0\.1, .*; try a smaller --lr or ",
    ),
    "any": (
        mlp_with(),
        {"lr": 1e30, "cut": "2,3", "optimizer": "sgd"},
        r"stage \d: the .* became (nan|inf) at step \d with learning rate (1e\+30|9.*e\+29), ",
    ),
    "loss": (mlp_with(NotNumber), {"cut": "2,4"}, r"stage 2: the loss became nan at step 1 "),
}


@pytest.mark.parametrize(("build", "others", "says"), NOT_FINITE.values(), ids=NOT_FINITE)
def test_what_is_not_finite_ends_the_run_on_all_ranks(
    build: Callable[[], nn.Module], others: dict[str, Any], says: str
) -> None:
    ended = list[str]()
    config = Config(batch_size=20, pp=3, schedule="pipedream", **others)

    def rank(comm: Comm) -> None:
        try:
            Trainer(config, build, clouds(200), comm=comm).fit(NullReport())
        except BaseException as error:
            ended.append(type(error).__name__)
            raise

    with pytest.raises(NotFiniteError, match=says):
        threads.run(3, rank)
    assert len(ended) == 3
    assert {*ended} <= {"AbortedError", "NotFiniteError"}  # its gradient may reach others too


# ---- what is recorded


def test_a_trace_has_all_passes_of_a_step(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    config = Config(**options(MLP, 3, epochs=2, steps=12, trace=str(path)))
    traced = threads.run(3, train, config)[0].result["trace"]
    assert traced["steps"] == 12
    assert traced["bubble"].keys() == {"measured", "simulated", "formula"}
    events = json.loads(path.read_text())["traceEvents"]
    for rank in range(3):
        found = Counter(
            (e["cat"], e["args"].get("step")) for e in events if e["ph"] == "X" and e["pid"] == rank
        )
        for kind in ("F", "B", "APPLY"):
            assert [found[kind, step] for step in range(12)] == [1] * 12


# ---- refusals


def test_copies_of_stages_are_refused() -> None:
    with refused("schedule pipedream with dp 3: 6 ranks in pipelines of 2", "use --pp 6"):
        strategies.check(Config(schedule="pipedream", pp=2), 6)


def test_a_weight_of_two_stages_is_refused() -> None:
    def build() -> nn.Module:
        made = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3))
        made[2].weight = made[0].weight
        return made

    config = Config(pp=2, schedule="pipedream", cut="2")

    def rank(comm: Comm) -> None:
        with pytest.raises(
            (ValueError, RuntimeError), match=r"0.weight is in stages on ranks 0, 1"
        ):
            Trainer(config, build, clouds(60), comm=comm)

    threads.run(2, rank)
