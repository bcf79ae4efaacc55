"""Passes on a GPU as CUDA graphs: the bits of the tape, or the tape with a reason."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.device import needs_device
from helpers.training.laws_language import VOCABULARY, windows
from helpers.training.pipelined import digits
from helpers.training.transformer_models import Decoder

import nnmpi
from nnmpi import Config, Tensor, Trainer, nn
from nnmpi.comm import Comm, comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.data import Split
from nnmpi.io.output import NullReport
from nnmpi.parallel.step.stage_lists import StageLists

pytest.importorskip("nnmpi.addons.cuda.table", reason="products by the library cannot be captured")
pytestmark = needs_device


class Dropped(nn.Module):
    """Layers with random numbers, also of `nnmpi.random`."""

    def __init__(self) -> None:
        self.a, self.norm, self.drop = nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Dropout(0.3)
        self.b = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(nn.functional.relu(self.norm(self.a(x.reshape(len(x), -1)))))
        return self.b(y + Tensor(nnmpi.random(self, y.shape, like=y)))


class Reading(nn.Module):
    """A module that depends on values."""

    def __init__(self) -> None:
        self.a = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x.reshape(len(x), -1))
        return y * 2 if float(y.sum().data) > 0 else y


Stages = Callable[[], list[StageLists]]


def gpt() -> nn.Module:
    return nn.GPT(2, 2, 16, VOCABULARY, 8, dropout=0.1)


MLP: dict[str, Any] = {"model": "mlp:64-32-10"}
WORDS = partial(windows, 56, 8)
CASES: dict[str, tuple[dict[str, Any], Any, Callable[[], Any]]] = {
    "mlp": (MLP, None, digits),
    "cnn": ({"model": "digits-cnn"}, None, digits),
    "random numbers": ({"compile": True}, Dropped, digits),
    "gpt": ({}, gpt, WORDS),
    "decoder": ({"compile": True}, partial(Decoder, VOCABULARY, 8, heads=2, width=16), WORDS),
    "float16": ({**MLP, "dtype": "float16"}, None, digits),
    "float64": ({**MLP, "dtype": "float64"}, None, digits),
    "micro-batches": ({**MLP, "micro_batches": 2}, None, digits),
    "blocks run again": ({"recompute": "block"}, gpt, WORDS),
    "clipping": ({**MLP, "clip_norm": 0.1}, None, digits),
}


def trained(
    options: dict[str, Any], build: Any, data: Any, comm: Comm, **changed: Any
) -> tuple[list[float], list[bytes]]:
    how: dict[str, Any] = {"batch_size": 8, "steps": 7, "epochs": 2, "quiet": True}
    losses = list[float]()

    class Heard:
        def on_step(self, trainer: Any, event: Any) -> None:
            losses.append(event["loss"])

    options = how | {"device": "cuda"} | options | changed
    loss = options.pop("loss", None)
    config = Config(**options)
    with Trainer(config, build, data, comm, loss=loss, callbacks=[Heard()]) as trainer:
        trainer.fit(NullReport())
        state = [np.asarray(value).tobytes() for value in trainer.model.state_dict().values()]
    return losses, state


def loss_of_positions(scores: Tensor, labels: Any) -> Tensor:
    return nn.functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), labels.reshape(-1))


@pytest.mark.parametrize("name", CASES)
def test_graphs_have_the_bits_of_the_tape(name: str, stages: Stages) -> None:
    options, build, data = CASES[name]
    wanted = trained(options, build, data(), comm_self(), compile=False)
    assert not stages()
    assert trained(options, build, data(), comm_self()) == wanted
    assert [(stage.reason, stage.replays > 0) for stage in stages()] == [(None, True)]


def test_ranks_with_copies_have_the_bits_of_the_tape(stages: Stages) -> None:
    options, build, data = CASES["mlp"]

    def run(compiled: bool | None) -> Any:
        return threads.run(
            2, lambda comm: trained(options, build, data(), comm, compile=compiled, dp=2)
        )

    assert run(None) == run(False)
    assert all(stage.reason is None and stage.replays > 0 for stage in stages())
    assert len(stages()) == 2


def test_labels_that_the_pass_computes_have_the_bits_of_the_tape(stages: Stages) -> None:
    def run(compiled: bool) -> Any:
        data = digits()
        how = {"loss": loss_of_positions, "compile": compiled}
        return trained(MLP, None, data, comm_self(), **how)

    assert run(True) == run(False)
    assert [(stage.reason, stage.replays > 0) for stage in stages()] == [(None, True)]


def test_a_pass_that_reads_values_runs_by_the_tape(stages: Stages) -> None:
    wanted = trained({}, Reading, digits(), comm_self(), compile=False)
    assert trained({"compile": True}, Reading, digits(), comm_self()) == wanted
    assert stages()[0].reason is not None
    assert "a CUDA graph cannot contain the pass" in stages()[0].reason


def test_wrong_labels_are_refused_before_a_graph_is_launched() -> None:
    data = digits()
    y = data.train.y.copy()
    y[-8:] = 11
    wrong = data._replace(train=Split(data.train.x, y))
    with pytest.raises(ValueError, match="labels from"):
        trained(MLP, None, wrong, comm_self())


class Counting(nn.Module):
    """A module whose class counts its passes."""

    calls = 0

    def __init__(self) -> None:
        self.a = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        Counting.calls = 1 - Counting.calls
        return self.a(x.reshape(len(x), -1))


def test_a_capture_changes_no_state_of_classes(stages: Stages) -> None:
    Counting.calls = 0
    trained({"compile": True}, Counting, digits(), comm_self(), compile=False)
    wanted, Counting.calls = Counting.calls, 0
    trained({"compile": True}, Counting, digits(), comm_self())
    assert Counting.calls == wanted
    assert not stages()[-1].replays
