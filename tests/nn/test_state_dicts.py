"""State dicts share the memory of their model, beside PyTorch's."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.device import ON_DEVICE
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi
from nnmpi import nn
from nnmpi.arrays import backend
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import NullReport

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 8, 3)).astype("float32")
State = dict[str, Any]


def model(n: Any) -> Any:
    """The same for both libraries, with a norm, and one weight under two names."""
    m = n.nn.Sequential(
        *(n.nn.Linear(3, 3), n.nn.BatchNorm1d(3), n.nn.Tanh(), n.nn.Linear(3, 3)),
        *(n.nn.Linear(3, 1), n.nn.Flatten(0)),
    )
    m[3].weight = m[0].weight
    rng = np.random.default_rng(1)
    with n.no_grad():
        for p in m.parameters():
            p.copy_(n.tensor(rng.standard_normal(tuple(p.shape)).astype("float32")))
    return m


def trained(n: Any, m: Any) -> None:
    """Two steps; making the optimizer moves the parameters here."""
    opt = n.optim.SGD(m.parameters(), lr=0.01, momentum=0.5)
    for x in X[:2]:
        opt.zero_grad()
        m(n.tensor(x).to(m[0].bias.device)).square().mean().backward()
        opt.step()


def kept(n: Any, m: Any) -> State:
    state = m.state_dict()
    trained(n, m)
    return dict(state)


def kept_after_the_first_steps(n: Any, m: Any) -> State:
    trained(n, m)
    return kept(n, m)


def snapshots(n: Any, m: Any) -> State:
    state = m.state_dict()
    copies = {
        "deepcopy": copy.deepcopy(state),
        "clone": {name: t.clone() for name, t in state.items()},
        "copied array": {name: t.numpy().copy() for name, t in state.items()},
        "pickle": pickle.loads(pickle.dumps(state)),
    }
    trained(n, m)
    return {f"{how} {name}": t for how, found in copies.items() for name, t in found.items()}


def a_shallow_copy(n: Any, m: Any) -> State:
    state = copy.copy(m.state_dict())
    trained(n, m)
    return state


def written(n: Any, m: Any) -> State:
    state = m.state_dict()
    state["0.weight"].mul_(2)
    state["0.bias"][1] = 5.0
    state["1.weight"].view(-1)[:2].zero_()
    state["1.bias"].copy_(n.tensor([1.0, 2.0, 3.0]))
    state["1.running_mean"].fill_(4.0)
    state["1.num_batches_tracked"] += 3
    state["3.bias"].numpy()[...] = 6.0
    state["4.weight"].data.add_(1.0)
    trained(n, m)
    state["4.bias"].sub_(1.0)
    return dict(m.state_dict())


def replaced(n: Any, m: Any) -> State:
    """An entry that is another tensor changes only the dict."""
    state = m.state_dict()
    state["0.weight"] = state["0.weight"] * 2
    return {**m.state_dict(), "here": state["0.weight"]}


def averaged(n: Any, m: Any) -> State:
    """A moving average as many programs write it, without gradients."""
    ema = copy.deepcopy(m)
    trained(n, m)
    with n.no_grad():
        for old, new in zip(ema.state_dict().values(), m.state_dict().values(), strict=True):
            old.copy_(new if old.dtype == n.int64 else 0.75 * old + 0.25 * new)
    return dict(ema.state_dict())


def loaded_into_itself(n: Any, m: Any) -> State:
    state = m.state_dict()
    trained(n, m)
    m.load_state_dict(state)
    return dict(m.state_dict())


def loaded_into_another(n: Any, m: Any) -> State:
    """Which has memory of its own afterwards."""
    other = model(n)
    trained(n, other)
    other.load_state_dict(m.state_dict())
    state = other.state_dict()
    trained(n, m)
    return dict(state)


def loaded_into_one_that_is_not_tied(n: Any, m: Any) -> State:
    other = model(n)
    other[3].weight = n.nn.Parameter(n.zeros(3, 3))
    state = m.state_dict()
    state["3.weight"].add_(1.0)
    other.load_state_dict(state)
    return dict(other.state_dict())


def in_another_type(n: Any, m: Any) -> State:
    state = m.double().state_dict()
    state["0.weight"].mul_(2)
    return dict(m.state_dict())


PROGRAMS = (
    *(kept, kept_after_the_first_steps, snapshots, a_shallow_copy, written, replaced, averaged),
    *(loaded_into_itself, loaded_into_another, loaded_into_one_that_is_not_tied, in_another_type),
)


@needs_torch
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_find_what_they_find_in_pytorch(program: Callable[[Any, Any], State]) -> None:
    ours, theirs = (program(n, model(n)) for n in (nnmpi, pytorch()))
    assert [*ours] == [*theirs]
    for name, t in theirs.items():
        assert tuple(np.shape(ours[name])) == tuple(t.shape), name
        assert str(ours[name].dtype) == str(t.dtype).removeprefix("torch."), name
        np.testing.assert_allclose(ours[name], np.asarray(t), rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("on", [backend.CPU, ON_DEVICE])
def test_a_kept_state_has_the_new_values_and_a_copy_the_old(on: Any) -> None:
    m = model(nnmpi).to(on=on)
    state = m.state_dict()
    assert {t.device for t in state.values()} == {on}
    assert all(isinstance(t, nnmpi.Tensor) and t.is_leaf for t in state.values())
    assert not any(t.requires_grad for t in state.values())
    old = copy.deepcopy(state)
    assert {type(t) for t in old.values()} == {nnmpi.Tensor}
    trained(nnmpi, m)
    for name, t in m.state_dict().items():
        np.testing.assert_array_equal(state[name], t, err_msg=name)
        is_cancelled = name == "0.bias"  # by the norm, so its gradient is 0
        assert is_cancelled or not np.array_equal(old[name], t), name
    m.load_state_dict(old)
    for name, t in state.items():
        np.testing.assert_array_equal(t, old[name], err_msg=name)


def test_a_write_counts_as_a_write_to_the_parameter() -> None:
    m = nn.Linear(2, 2, bias=False)
    m.state_dict()["weight"].fill_(3.0)
    m.seed = 7  # not too late: the values do not follow from a seed any more
    assert (m.weight == 3).all()
    assert m.weight.requires_grad


@pytest.mark.parametrize("options", [{}, {"allreduce": "shared"}, {"allreduce": "ring"}], ids=str)
def test_a_kept_state_follows_the_memory_of_a_trainer(options: dict[str, Any]) -> None:
    def rank(comm: Comm) -> None:
        config = nnmpi.Config(batch_size=8, epochs=1, quiet=True, **options)
        build = lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))  # noqa: E731
        data = X.reshape(-1, 3), np.arange(32) % 2
        trainer = nnmpi.Trainer(config, build, data, comm)
        state = trainer.model.state_dict()
        old = copy.deepcopy(state)
        trainer.fit(NullReport())
        for closes in (False, True):
            if closes:
                trainer.close()
            for name, t in trainer.model.state_dict().items():
                np.testing.assert_array_equal(state[name], t, err_msg=name)
                assert not np.array_equal(old[name], t), name

    threads.run(2, rank)


@pytest.mark.parametrize("zero", [2, 3])
def test_shards_are_read_where_they_are_gathered(zero: int) -> None:
    def rank(comm: Comm) -> None:
        config = nnmpi.Config(batch_size=8, epochs=1, quiet=True, zero=zero)
        data = X.reshape(-1, 3), np.arange(32) % 2
        trainer = nnmpi.Trainer(config, lambda: nn.Linear(3, 2), data, comm)
        with trainer.gathered_parameters():
            state = trainer.model.state_dict()
            old = copy.deepcopy(state)
            state["bias"].fill_(2.0)
        for read in (trainer.model.state_dict, state["weight"].numpy):
            with refused("weight", "trainer.gathered_parameters()"):
                read()
        with trainer.gathered_parameters():
            np.testing.assert_array_equal(state["weight"], old["weight"])
            assert (trainer.model.bias == 2).all()
        trainer.fit(NullReport())
        trainer.close()
        np.testing.assert_array_equal(state["weight"], trainer.model.weight.detach())
        assert not np.array_equal(state["weight"], old["weight"])

    threads.run(2, rank)
