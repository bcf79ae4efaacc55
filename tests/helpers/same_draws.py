"""The same random numbers and initial weights for a script under PyTorch and under nnmpi.

    draws = Draws()
    draws.keep(monkeypatch, torch)        # under PyTorch each call that draws keeps its result
    ...                                   # the script runs
    draws.repeat(monkeypatch, nnmpi)      # under nnmpi the same calls return these results
    ...                                   # the script runs with its imports swapped
    assert draws.left == 0

PyTorch draws the masks of dropout within attention, and between recurrent layers, where no caller
sees them: both runs do without these.

A call of nnmpi draws as it does without this, and is then compared with the call of PyTorch whose
result it gets: the name, the shapes and the types must be equal.
"""

from collections.abc import Callable, Iterator
from functools import wraps
from inspect import signature
from typing import Any

import numpy as np
import pytest

Arrays = dict[str, np.ndarray]
"""What a call has drawn, by the name of a parameter or by another one."""

FUNCTIONS = "bernoulli multinomial normal rand rand_like randint randint_like randn randn_like"
FUNCTIONS += " randperm poisson"
METHODS = "bernoulli bernoulli_ exponential_ multinomial normal_ uniform_"
INITS = "kaiming_normal_ kaiming_uniform_ normal_ orthogonal_ trunc_normal_ uniform_"
INITS += " xavier_normal_ xavier_uniform_"
LAYERS = "Bilinear Conv1d Conv2d ConvTranspose1d ConvTranspose2d Embedding EmbeddingBag GRU GRUCell"
LAYERS += " LSTM LSTMCell Linear MultiheadAttention RNN RNNCell TransformerDecoderLayer"
LAYERS += " TransformerEncoderLayer Transformer"
DROPOUTS = "dropout dropout1d dropout2d"
DROPOUT_LAYERS = "Dropout Dropout1d Dropout2d"
SAMPLERS = "DistributedSampler RandomSampler SubsetRandomSampler WeightedRandomSampler"
DISTRIBUTIONS = "Bernoulli Categorical Independent MixtureSameFamily Normal"
HIDDEN = "GRU", "LSTM", "MultiheadAttention", "RNN"
"""Layers whose dropout is within an op of PyTorch."""


class Draws:
    """The results of calls that draw, in the order of the calls.

    A call within another one, as that of a function by a layer, counts as a part of it.
    """

    def __init__(self) -> None:
        self.results: list[tuple[str, Arrays]] = []
        self.left = 0
        self.is_kept = True
        self.is_within = False

    def keep(self, patch: pytest.MonkeyPatch, library: Any) -> None:
        """Has the library keep what it draws."""
        self.is_kept = True
        self._patch(patch, library)

    def repeat(self, patch: pytest.MonkeyPatch, library: Any) -> None:
        """Has the library return what was kept."""
        self.is_kept, self.left = False, len(self.results)
        self._patch(patch, library)

    def outermost(
        self, call: Callable[..., Any], drawing: Callable[..., Any]
    ) -> Callable[..., Any]:
        """The call, with `drawing` in its place where it is not within another call that draws."""

        @wraps(call)
        def function(*args: Any, **options: Any) -> Any:
            if self.is_within:
                return call(*args, **options)
            self.is_within = True
            try:
                return drawing(*args, **options)
            finally:
                self.is_within = False

        return function

    def shared(self, name: str, drawn: Arrays) -> Arrays:
        """What PyTorch's call of this number has drawn; raises AssertionError if another one was
        called, or its results have other shapes or types."""
        if self.is_kept:
            self.results.append((name, drawn))
            return drawn
        assert self.left, f"nnmpi calls {name}, and PyTorch draws no more"
        expected, arrays = self.results[-self.left]
        self.left -= 1
        ours, theirs = ((n, described(a)) for n, a in ((name, drawn), (expected, arrays)))
        assert ours == theirs, f"nnmpi draws {ours}, PyTorch {theirs}"
        return arrays

    def _patch(self, patch: pytest.MonkeyPatch, library: Any) -> None:
        kinds = [
            (library, FUNCTIONS, self._tensor),
            (library.Tensor, METHODS, self._tensor),
            (library.nn.init, INITS, self._tensor),
            (library.nn.functional, DROPOUTS, self._dropout),
            (library.nn.functional, "scaled_dot_product_attention", self._attention),
            (library.utils.data, "random_split", self._split),
            (library.utils.data.dataset, "random_split", self._split),
        ]
        distributions = members(library.distributions, DISTRIBUTIONS)
        kinds += [(c, "sample", self._tensor) for c in distributions]
        kinds += [(c, "__init__", self._layer) for c in members(library.nn, LAYERS)]
        kinds += [(c, "forward", self._dropout) for c in members(library.nn, DROPOUT_LAYERS)]
        kinds += [(c, "__iter__", self._order) for c in members(library.utils.data, SAMPLERS)]
        for owner, names, drawing in kinds:
            for name in names.split():
                if (call := callable_of(library, owner, name)) is not None:
                    drawn = self.outermost(call, drawing(library, call))
                    patch.setattr(owner, name, drawn, raising=False)

    # ---- what takes the place of a call, by what the call returns

    def _tensor(self, library: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        """A tensor, which may be the one that was given."""

        def drawing(*args: Any, **options: Any) -> Any:
            t = call(*args, **options)
            overwrite(library, t, self.shared(call.__name__, {"": values(t)})[""])
            return t

        return drawing

    def _layer(self, library: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        """A layer's constructor: its parameters."""

        def drawing(layer: Any, *args: Any, **options: Any) -> None:
            call(layer, *args, **options)
            self._prepare_dropouts(layer)
            parameters = dict(layer.named_parameters())
            drawn = {name: values(p) for name, p in parameters.items()}
            for name, array in self.shared(type(layer).__name__, drawn).items():
                overwrite(library, parameters[name], array)

        return drawing

    def _dropout(self, library: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        """Dropout, as a product with a mask."""

        def drawing(*args: Any, **options: Any) -> Any:
            given = signature(call).bind(*args, **options)
            given.apply_defaults()
            layer, p, training, x = (
                given.arguments.get(name) for name in ("self", "p", "training", "input")
            )
            swapped = getattr(layer, "is_swapped", False)
            if layer is not None:
                p, training = layer.p, layer.training
                x = args[1]
            y = call(*args, **options)
            if not training or p == 0:
                return y
            with library.no_grad():
                ones = library.ones_like(x)
                mask = call(layer, ones) if layer is not None else call(ones, p, True)
            drawn = values(mask)
            shared = self.shared("dropout", {"": drawn.swapaxes(0, 1) if swapped else drawn})[""]
            overwrite(library, mask, shared.swapaxes(0, 1) if swapped else shared)
            return x * mask

        return drawing

    def _prepare_dropouts(self, layer: Any) -> None:
        """Switches hidden dropouts off, and marks those for which PyTorch has sequences where
        nnmpi has samples first."""
        for m in layer.modules():
            if type(m).__name__ in HIDDEN:
                m.dropout = 0.0
            elif type(m).__name__ == "TransformerEncoderLayer":
                for part in (m.dropout, m.dropout1, m.dropout2):
                    part.is_swapped = self.is_kept and not m.self_attn.batch_first

    def _attention(self, library: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        """Attention without its dropout, which is called with it too."""

        def drawing(*args: Any, dropout_p: float = 0.0, **options: Any) -> Any:
            if dropout_p:
                call(*args, dropout_p=dropout_p, **options)
            return call(*args, **options)

        return drawing

    def _order(self, library: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        """The indices of a sampler."""

        def drawing(sampler: Any) -> Iterator[int]:
            order = np.array([*call(sampler)], "int64")
            return iter(self.shared(type(sampler).__name__, {"": order})[""].tolist())

        return drawing

    def _split(self, library: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        """Parts of a data set."""

        def drawing(*args: Any, **options: Any) -> Any:
            parts = call(*args, **options)
            drawn = {str(i): np.asarray(part.indices, "int64") for i, part in enumerate(parts)}
            for i, indices in self.shared("random_split", drawn).items():
                parts[int(i)].indices = indices
            return parts

        return drawing


def callable_of(library: Any, owner: Any, name: str) -> Any:
    """A function or method, which a tensor of nnmpi may load when it is used; None without one."""
    if owner is not library.Tensor or hasattr(owner, name):
        return getattr(owner, name, None)
    return getattr(getattr(library.zeros(1), name, None), "__func__", None)


def members(owner: Any, names: str) -> list[Any]:
    """The classes of a module that have these names, without those that it lacks."""
    found = [getattr(owner, name, None) for name in names.split()]
    return [c for c in found if c is not None]


def values(t: Any) -> np.ndarray:
    """A copy of a tensor's values."""
    return np.array(t.detach().cpu().numpy())


def described(arrays: Arrays) -> dict[str, tuple[tuple[int, ...], str]]:
    """The shape and the type of each array."""
    return {name: (a.shape, str(a.dtype)) for name, a in arrays.items()}


def overwrite(library: Any, t: Any, array: np.ndarray) -> None:
    """Writes the values of an array into a tensor or parameter."""
    with library.no_grad():
        t.detach()[...] = library.from_numpy(array)
