"""Recurrent layers behind an embedding: each distinct word is multiplied with once, and nobody else
sees a difference."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.ops.oracle import needs_torch, same_as_pytorch

import nnmpi
from nnmpi import nn
from nnmpi.addons.recurrent import ops as recurrent

WORDS, T, N, K, H = 7, 6, 5, 4, 3
LENGTHS = [3, 6, 1, 0, 6]
INDEX = np.random.default_rng(0).integers(0, 5, (N, T))  # words 5 and 6 do not occur
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "RNN": ("RNN", {}),
    "RNN of ReLU": ("RNN", {"nonlinearity": "relu"}),
    "LSTM": ("LSTM", {}),
    "LSTM, two layers, both directions": (
        "LSTM",
        {"num_layers": 2, "bidirectional": True, "dropout": 0.4},
    ),
    "GRU": ("GRU", {}),
    "GRU, both directions, plain": ("GRU", {"bidirectional": True, "bias": False}),
}


class Text(nn.Module):
    """Reads words; `between` stands between the embedding and the layer."""

    def __init__(self, kind: str = "LSTM", first: bool = True, lengths: Any = None) -> None:
        name, options = KINDS[kind]
        self.embed = nn.Embedding(WORDS, K, padding_idx=2)
        self.read = getattr(nn, name)(K, H, batch_first=first, **options)
        self.lengths = lengths
        self.between: Callable[[Any], Any] = lambda e: e

    def forward(self, words: Any) -> Any:
        e = self.between(self.embed(words if self.read.batch_first else words.T))
        y, state = self.read(e, lengths=self.lengths)
        state = state if isinstance(state, tuple) else (state,)
        return sum(((v * v * 0.3 + v) * (k + 1)).sum() for k, v in enumerate((y, *state)))


def text(kind: str = "LSTM", *options: Any, dtype: str = "float64") -> Text:
    model = Text(kind, *options)
    model.seed = 1
    return model.to(dtype)


def results(model: nn.Module) -> dict[str, np.ndarray]:
    """The loss and all gradients, of one pass."""
    for p in model.parameters():
        p.grad = None
    loss = model(INDEX)
    loss.backward()
    return {"loss": loss.numpy(), **{name: p.grad for name, p in model.named_parameters()}}


def agree(a: dict[str, np.ndarray], b: dict[str, np.ndarray], close: float = 1e-13) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert np.abs(a[name] - b[name]).max() <= close * max(1, np.abs(b[name]).max()), name


@pytest.fixture
def multiplied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rows of the products with W_ih, whose inputs alone have K channels."""
    rows, plain = list[int](), recurrent.outputs

    def spy(x: Any, *rest: Any) -> None:
        rows.extend([len(x)] * (x.shape[1] == K))
        plain(x, *rest)

    monkeypatch.setattr(recurrent, "outputs", spy)
    return rows


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=str)
@pytest.mark.parametrize("first", [False, True], ids=["T first", "batch first"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_equals_a_layer_that_knows_of_no_words(
    kind: str, first: bool, lengths: Any, multiplied: list[int]
) -> None:
    model, directions = text(kind, first, lengths), 1 + ("both" in kind)
    found, counts = results(model), multiplied[:]
    model.between = lambda e: e.copy()
    model.passes -= 1  # the masks of the same step
    agree(found, results(model))
    read = INDEX if lengths is None else INDEX[np.arange(T) < np.array(lengths)[:, None]]
    assert counts == [len(np.unique(read))] * directions
    assert multiplied[directions:] == [read.size] * directions
    assert not found["embed.weight"][[2, 5, 6]].any()
    assert found["embed.weight"][[0, 1, 3, 4]].all()


@needs_torch
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_values_and_gradients_are_pytorchs(kind: str) -> None:
    def program(n: Any, layers: Any, index: Any) -> Any:
        y, state = layers[1](layers[0](index))
        return y, *(state if isinstance(state, tuple) else (state,))

    def make(nn: Any) -> Any:
        read = getattr(nn, kind)(K, H, batch_first=True)
        return nn.ModuleList([nn.Embedding(WORDS, K, padding_idx=2), read])

    same_as_pytorch(program, INDEX, make=make, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("reads_last", [False, True], ids=["first", "last"])
def test_the_rows_may_be_used_elsewhere_too(reads_last: bool) -> None:
    def total(model: Text, copies: bool) -> dict[str, np.ndarray]:
        e = model.embed(INDEX)
        own = e.copy() if copies else e
        if reads_last:
            loss = (e * e * 0.5).sum() + (e.mean(1) ** 2).sum() + model.read(own)[0].sum()
        else:
            loss = model.read(own)[0].sum() + (e * e * 0.5).sum() + (e.mean(1) ** 2).sum()
        loss.backward()
        return {name: p.grad for name, p in model.named_parameters()}

    agree(total(text(), False), total(text(), True))


def numbers(e: Any) -> np.ndarray:
    return np.arange(e.size, dtype=e.dtype).reshape(e.shape)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "data": lambda e: e.data.__setitem__(1, 3),
    "elements": lambda e: e.__setitem__(1, 3),
    "+=": lambda e: e.__iadd__(numbers(e)),
    "a view": lambda e: e.reshape(-1, K)[:5].fill_(3),
    "an array": lambda e: e.numpy().__setitem__(1, 3),
    "a detached tensor": lambda e: e.detach().data.__setitem__(1, 3),
    "other data": lambda e: setattr(e, "data", numbers(e)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_rows_that_are_changed_are_no_words_any_more(change: Callable[[Any], Any]) -> None:
    """All rows of word 0 are not equal then."""
    model = text()

    def changed(e: Any) -> Any:
        change(e)
        return e

    with nnmpi.no_grad():
        model.between = changed
        found = model(INDEX)
        model.between = lambda e: changed(e.copy())
        expected = model(INDEX)
        model.between = lambda e: e
        assert abs(found.item() - model(INDEX).item()) > 1e-3
    assert abs(found.item() - expected.item()) <= 1e-12


def test_an_index_that_is_written_to_afterwards_does_not_count() -> None:
    model, words = text(), INDEX.copy()
    e = model.embed(words)
    words[...] = 0
    found = model.read(e)[0].numpy()
    np.testing.assert_allclose(found, model.read(model.embed(INDEX).copy())[0].numpy(), atol=1e-14)


def test_dropout_between_makes_rows_of_their_own(multiplied: list[int]) -> None:
    model = text()
    model.between = nn.Dropout(0.5)
    results(model)
    assert multiplied == [N * T]
    model.eval()
    results(model)
    assert multiplied == [N * T, 5]


def test_a_frozen_table_gets_no_gradient() -> None:
    grads = []
    for between in (lambda e: e, lambda e: e.copy()):
        model = text()
        model.embed.weight.requires_grad, model.between = False, between
        model(INDEX).backward()
        assert model.embed.weight.grad is None
        grads.append({name: p.grad for name, p in model.read.named_parameters()})
    agree(*grads)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_other_types(dtype: str) -> None:
    pytest.importorskip("ml_dtypes", reason="bfloat16 comes with ml_dtypes")
    model, other = text(dtype=dtype), text(dtype="float64")
    found = results(model)
    other.load_state_dict({k: v.astype("float64") for k, v in model.state_dict().items()})
    assert all(str(v.dtype) == dtype for name, v in found.items() if name != "loss")
    close = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5}[dtype]
    agree({k: v.astype("float64") for k, v in found.items()}, results(other), close)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
def test_words_of_any_integers(dtype: str) -> None:
    model = text()
    found = model(INDEX.astype(dtype))
    found.backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    agree({"loss": found.numpy(), **grads}, results(text()))
