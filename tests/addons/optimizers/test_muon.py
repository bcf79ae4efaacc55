"""Muon: steps as PyTorch's, strategies that take it, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.ops.oracle import needs_torch, pytorch
from helpers.training.laws_language import tokens
from helpers.training.pipelined import BOUND, Heard, digits, distance, is_same, run
from helpers.twins import Twins
from test_layerwise import OPTIONS, decoder, on_one_rank, trained

import nnmpi
from nnmpi import Config, Trainer, nn, optim
from nnmpi.arrays.backend import META
from nnmpi.comm import Comm, comm_self
from nnmpi.comm import thread_ranks as threads

STEPS = 12
SHAPES = {"tall": (19, 6), "wide": (6, 19), "square": (8, 8), "row": (1, 5), "column": (5, 1)}


# ---- the rule


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """PyTorch, whose Muon computes in the type of the matrix, not in bfloat16."""
    library = pytorch()
    monkeypatch.setattr(library.Tensor, "bfloat16", lambda matrix: matrix.clone())
    return library


@needs_torch
@pytest.mark.parametrize("ratio", [None, "original", "match_rms_adamw"])
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_trajectories_are_pytorchs(
    shape: tuple[int, int], nesterov: bool, ratio: str | None, torch: Any
) -> None:
    rng = np.random.default_rng(0)
    start = rng.standard_normal(shape)
    given: tuple[Any, ...] = (0.05, 0.2, 0.9, nesterov)
    others: dict[str, Any] = {"adjust_lr_fn": ratio, "ns_steps": 4, "eps": 1e-5}
    # also if the axes are in memory in the other order, as those of the weights of some layers are
    mine = [
        nn.Parameter.lazy(shape, lambda key, index: start.reshape(-1)[index], order)
        for order in ((0, 1), (1, 0))
    ]
    for p in mine:
        p.draw("float64")
    ours = optim.Muon(mine, *given, **others)
    q = torch.nn.Parameter(torch.tensor(start))
    theirs = torch.optim.Muon([q], *given, **others)
    for t in range(STEPS):
        g = rng.standard_normal(shape) if t != 5 else np.zeros(shape)
        for p in mine:
            p.grad = g
        q.grad = torch.tensor(g)
        for opt in (ours, theirs):
            opt.param_groups[0]["lr"] *= 0.9
            opt.step()
        buffers = [x.elements() for x in ours.state_arrays() if x.name.endswith("buffer")]
        for p, buffer in zip(mine, buffers, strict=True):
            wanted = q.detach().numpy(), theirs.state[q]["momentum_buffer"].numpy()
            for found, expected in zip((p.data, buffer), wanted, strict=True):
                values = expected if found.ndim > 1 else expected.transpose(p.memory_axes).ravel()
                assert np.abs(found - values).max() <= 1e-13 * np.abs(values).max()


@needs_torch
@pytest.mark.usefixtures("torch")
def test_what_is_no_matrix_has_the_steps_of_pytorchs_adamw() -> None:
    rng = np.random.default_rng(0)

    def made(library: Any, parameters: list[Any]) -> list[Any]:
        if library is optim:
            return [optim.Muon.with_adamw(parameters, 0.05, 0.2)]
        return [
            library.Muon(parameters[1:2], 0.05, 0.2, adjust_lr_fn="match_rms_adamw"),
            library.AdamW(parameters[::2], 0.05, weight_decay=0.2),
        ]

    twins = Twins([nn.Parameter(rng.standard_normal(s)) for s in ((3, 2, 2), (4, 5), (7,))], made)
    for t in range(STEPS):
        for opt in twins.optimizers:
            opt.zero_grad()
        drawn = [rng.standard_normal(p.shape) for p in twins.mine]
        twins.step(g if i < 2 or t % 2 else None for i, g in enumerate(drawn))
        twins.compare(1e-13)


def model(dtype: str = "float64") -> nn.Sequential:
    """Weights whose memory is not in the order of their axes, and sizes that leave gaps."""
    with nnmpi.seeded(1):
        layers = nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 7)
        return nn.Sequential(*layers).to(dtype)


def train(m: nn.Module, opt: optim.Optimizer, steps: range) -> None:
    for t in steps:
        for i, p in enumerate(m.parameters()):
            p.grad = np.random.default_rng([t, i]).standard_normal(p.shape)
        opt.step()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_training_goes_on_from_a_state_with_the_same_bits(dtype: str) -> None:
    (m, opt), (other, again) = (
        (made, optim.Muon.with_adamw(made.parameters())) for made in (model(dtype), model(dtype))
    )
    train(m, opt, range(4))
    state = opt.named_state()
    names = ("momentum_buffer", "exp_avg_sq", "step")
    assert {*state} == {f"{path}.{name}" for path in m.state_dict() for name in names}
    other.load_state_dict(m.state_dict())
    again.load_state_dict(state)
    for one in ((m, opt), (other, again)):
        train(*one, range(4, 7))
    for name, weight in m.state_dict().items():
        assert weight.dtype == dtype
        np.testing.assert_array_equal(other.state_dict()[name], weight, name)
    for name, value in opt.named_state().items():
        np.testing.assert_array_equal(again.named_state()[name], value, name)


def test_matrices_alone_have_one_array_of_state() -> None:
    m = model()
    opt = optim.Muon([p for p in m.parameters() if p.ndim == 2])
    assert opt.state_names == ("momentum_buffer",)
    assert list(opt.named_state()) == [
        f"{k}.weight.{name}" for k in (2, 4) for name in ("momentum_buffer", "step")
    ]


def test_groups_have_options_of_their_own() -> None:
    m, t = model(), 0
    weights = [m[2].weight, m[4].weight]
    opt = optim.Muon([{"params": weights[:1], "lr": 0.0}, {"params": weights[1:]}], lr=0.1)
    before = [p.data.copy() for p in weights]
    train(m, opt, range(t, 1))
    np.testing.assert_array_equal(weights[0].data, before[0])
    assert (weights[1].data != before[1]).all()
    decays = optim.Muon.with_adamw(optim.matrices_decay(m.parameters()), 0.1, 0.3)
    assert [(g["weight_decay"], g["adamw"], len(g["params"])) for g in decays.param_groups] == [
        (0.3, False, 2),
        (0.3, True, 1),
        (0.0, False, 0),
        (0.0, True, 3),
    ]


def test_a_step_on_paper_has_its_operations() -> None:
    """By which the planner counts them; no values are read."""
    m = nn.Linear(6, 4).to(on=META)
    opt = optim.Muon.with_adamw(m.parameters())
    for p in m.parameters():
        p.grad = META.xp.empty(p.shape, "float32")
    opt.step()
    assert opt.steps == [1, 1]


# ---- what is refused


BAD: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "rate": ({"lr": -1}, ("lr -1",)),
    "decay": ({"weight_decay": -1}, ("weight_decay -1",)),
    "momentum": ({"momentum": -0.1}, ("momentum -0.1",)),
    "coefficients": ({"ns_coefficients": (1, 2)}, ("(1, 2)", "three numbers")),
    "steps": ({"ns_steps": 100}, ("ns_steps 100", "less than 100")),
    "eps": ({"eps": 0.0}, ("eps 0",)),
    "betas": ({"betas": (0.9, 1.0)}, ("(0.9, 1.0)",)),
    "ratio": ({"adjust_lr_fn": "none"}, ("'none'", "'original'", "'match_rms_adamw'")),
}


@pytest.mark.parametrize(("options", "words"), BAD.values(), ids=BAD)
def test_bad_options_give_one_line(options: dict[str, Any], words: tuple[str, ...]) -> None:
    with refused(*words):
        optim.Muon([model()[2].weight], **options)


def test_other_parameters_than_matrices_are_refused_as_in_pytorch() -> None:
    with refused("0.weight has the shape (3, 2, 3, 3)", "adamw=True", "Muon.with_adamw"):
        optim.Muon(model().parameters())
    with refused("2.bias has the shape (5,)"):
        optim.Muon(model()[2].parameters())


PARTS: dict[str, tuple[dict[str, Any], str]] = {
    "zero 1": ({"zero": 1}, "use --allreduce ring and --zero 0"),
    "zero 3": ({"zero": 3}, "use --allreduce ring and --zero 0"),
    "memory of a node": ({"allreduce": "shared"}, "use --allreduce ring and --zero 0"),
    "tp": ({"tp": 2}, "use --tp 1"),
}


@pytest.mark.parametrize(("layout", "remedy"), PARTS.values(), ids=PARTS)
def test_parts_of_matrices_are_refused_if_the_user_makes_the_optimizer(
    layout: dict[str, Any], remedy: str
) -> None:
    """The options do not say then that it is Muon."""

    def make(named: Any) -> optim.Optimizer:
        return optim.Muon.with_adamw([p for _, p in named])

    def fit(comm: Comm) -> None:
        config = Config(**layout, steps=1, quiet=True, bucket_mb=1e-4)
        Trainer(config, decoder, tokens(8), comm, optimizer=make)

    with pytest.raises(ValueError, match=f"Muon needs whole matrices, .*{remedy}"):
        threads.run(2, fit)


def test_a_piece_of_a_matrix_is_refused() -> None:
    """As updates of values that are on disk would have it."""
    weight = model()[2].weight
    opt = optim.Muon([weight])
    ((_, x),) = opt.operands()
    before = weight.data.copy()
    with refused("this update is of 8 of 60 elements", "leave out --memory"):
        opt._update(x.part(slice(8)), opt._group_of(0, 0, 1.0))
    np.testing.assert_array_equal(weight.data, before)


# ---- layouts, beside those of test_layerwise.py

HOW: dict[str, Any] = {"optimizer": "muon", **OPTIONS["muon"]}


@pytest.mark.parametrize("layout", [{"dp": 2}, {"dp": 2, "pp": 2}], ids=["dp 2", "dp 2, pp 2"])
def test_verify_finds_each_update_to_be_that_of_one_rank(layout: dict[str, Any]) -> None:
    def fit(comm: Comm) -> None:
        found = trained(comm, "muon", **layout, verify=True)
        assert distance(found.state, on_one_rank("muon").state) < BOUND
        checks = [event for event in found.events if event["event"] == "verify"]
        assert len(checks) == 10

    threads.run(4 if "pp" in layout else 2, fit)


def test_reproducible_runs_have_the_bits_of_one_rank() -> None:
    how = {**HOW, "reproducible": True, "slices": 4}
    wanted = run(comm_self(), **how)
    threads.run(2, lambda comm: is_same(run(comm, **how), wanted))


def wide() -> nn.Module:
    """A matrix of more elements than an update in blocks takes at once; the last layer, which a
    pipeline may have on a rank of its own, is a matrix alone."""
    first = nn.Flatten(), nn.Linear(64, 700), nn.ReLU()
    return nn.Sequential(*first, nn.Linear(700, 10, bias=False))


OTHERS: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank, 16 bits": (1, {"dtype": "bfloat16"}),
    "16 bits": (2, {"dtype": "bfloat16"}),
    "a loss scale": (2, {"dtype": "float16", "clip_norm": 0.5}),
    "16 bits, pp 2": (2, {"dtype": "bfloat16", "pp": 2}),
    "local steps": (2, {"sync": "local", "every": 2}),
    "gossip": (3, {"sync": "gossip", "every": 2}),
    "pipedream": (2, {"schedule": "pipedream", "pp": 2}),
    "compressed": (2, {"compress": "topk:0.1"}),
}


@pytest.mark.parametrize(("ranks", "options"), OTHERS.values(), ids=OTHERS)
def test_other_strategies_train(ranks: int, options: dict[str, Any]) -> None:
    """Copies stay equal in them."""

    def fit(comm: Comm) -> None:
        found = run(comm, wide, **{**HOW, **options})
        assert found.done["test_loss"] < 0.8 * np.log(10)

    threads.run(ranks, fit)


@pytest.mark.parametrize("layout", [{"dp": 2}, {"pp": 2, "cut": "3"}], ids=["dp 2", "pp 2"])
def test_a_run_goes_on_from_a_checkpoint_with_the_same_bits(
    layout: dict[str, Any], tmp_path: Path
) -> None:
    how = {**HOW, **layout, "dtype": "float64", "batch_size": 24, "lr_schedule": "constant"}

    def fit(comm: Comm, epochs: int, options: dict[str, Any]) -> dict[str, Any]:
        config = Config(**how, epochs=epochs, **options)
        with Trainer(config, wide, digits(), comm) as trainer:
            done = trainer.fit(Heard())
            state = trainer.optimizer_state_dict()
        return {"sha256": done["parameters_sha256"], **{k: v.tobytes() for k, v in state.items()}}

    kept = {"checkpoint_dir": str(tmp_path)}
    wanted = threads.run(2, fit, 4, {})
    threads.run(2, fit, 2, kept)
    found = threads.run(2, fit, 4, {**kept, "resume": True})
    assert found == wanted
    assert any(name.endswith("momentum_buffer") for name in wanted[0])
