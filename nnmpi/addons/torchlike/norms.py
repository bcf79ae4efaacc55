"""PyTorch's `weight_norm` and `spectral_norm`, which compute a weight anew before each forward
pass. They are hooks of a module, which therefore stays whole where a model is divided among
ranks."""

from typing import Any, TypeVar

import numpy as np

from nnmpi.arrays import backend
from nnmpi.autograd import Tensor, no_grad
from nnmpi.nn.layers.conv import ConvTranspose2d
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.random_numbers import randn

M = TypeVar("M", bound=Module)


class _Computed:
    """The base class of the hooks of `weight_norm` and `spectral_norm`: a forward pre-hook that
    computes the weight from other parameters, and sets it as an attribute of the module."""

    suffixes: tuple[str, ...]

    def __init__(self, module: Module, name: str) -> None:
        self.name = name
        weight = getattr(module, name, None)
        if not isinstance(weight, Parameter):
            raise ValueError(
                f"{type(module).__name__} has no parameter {name!r}: give a layer with a weight, "
                "and each weight one norm"
            )

    def __call__(self, module: Module, args: Any) -> None:
        object.__setattr__(module, self.name, self.weight(module))

    def weight(self, module: Module) -> Tensor:
        """Returns the weight for the next forward pass."""
        raise NotImplementedError

    def install(self, module: M) -> M:
        """Registers the hook in a module and computes the weight once; returns the module."""
        module.register_forward_pre_hook(self)
        with no_grad():
            self(module, ())
        return module


class _WeightNorm(_Computed):
    """Sets the weight to v g / |v|, with one norm for each slice along `dim`."""

    suffixes = "_g", "_v"

    def __init__(self, module: Module, name: str, dim: int | None) -> None:
        super().__init__(module, name)
        v = getattr(module, name)
        is_whole = dim is None or dim == -1
        self.axes = tuple(i for i in range(v.ndim) if is_whole or i != dim % v.ndim)
        norms = self._norms(v).numpy()
        delattr(module, name)
        setattr(module, f"{name}_g", Parameter(norms.reshape(()) if is_whole else norms))
        setattr(module, f"{name}_v", v)

    def _norms(self, v: Tensor) -> Tensor:
        norms: Tensor = (v * v).sum(self.axes, True).sqrt()
        return norms

    def weight(self, module: Module) -> Tensor:
        g, v = (getattr(module, f"{self.name}{end}") for end in self.suffixes)
        weight: Tensor = v * (g / self._norms(v))
        return weight


class _SpectralNorm(_Computed):
    """Divides a weight by its largest singular value, from a power iteration."""

    suffixes = "_orig", "_u", "_v"

    def __init__(self, module: Module, name: str, iterations: int, eps: float, dim: int) -> None:
        super().__init__(module, name)
        if iterations < 1:
            raise ValueError(f"spectral_norm: n_power_iterations={iterations} must be at least 1")
        self.iterations, self.eps, self.dim = iterations, eps, dim
        weight = getattr(module, name)
        delattr(module, name)
        setattr(module, f"{name}_orig", weight)
        for end, size in zip(self.suffixes[1:], self._matrix(weight).shape, strict=True):
            module.register_buffer(
                f"{name}{end}", self._unit(randn(size).array).astype(weight.dtype)
            )

    def _matrix(self, weight: Tensor) -> Tensor:
        others = (i for i in range(weight.ndim) if i != self.dim)
        return weight.permute(self.dim, *others).reshape(weight.shape[self.dim], -1)

    def _unit(self, x: Any) -> Any:
        xp = backend.xp_of(x)
        return x / xp.maximum(xp.sqrt((x * x).sum()), self.eps)

    def weight(self, module: Module) -> Tensor:
        w, *vectors = (getattr(module, f"{self.name}{end}") for end in self.suffixes)
        matrix, (u, v) = self._matrix(w), [t._array for t in vectors]
        if module.training:
            values = matrix.detach().array
            for _ in range(self.iterations):
                v[...] = self._unit(values.T @ u)
                u[...] = self._unit(values @ v)
        largest = (Tensor(u.copy()) * (matrix @ Tensor(v.copy()))).sum()
        weight: Tensor = w / largest
        return weight


def weight_norm(module: M, name: str = "weight", dim: int | None = 0) -> M:
    """Replaces the weight of a module by weight_v * weight_g / |weight_v|, with new parameters
    `weight_v` and `weight_g`, the norm of each slice along `dim`. Returns the module."""
    return _WeightNorm(module, name, dim).install(module)


def spectral_norm(
    module: M,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> M:
    """Divides the weight `name` of a module by its largest singular value in each forward pass.
    Returns the module.

    The parameter is renamed `weight_orig`. The buffers `weight_u` and `weight_v` have estimates of
    the singular vectors, which each forward pass in training improves by `n_power_iterations`
    iterations. `dim` is the axis of the outputs, and `eps` the least norm by which a vector is
    divided.
    """
    axis = dim if dim is not None else int(isinstance(module, ConvTranspose2d))
    return _SpectralNorm(module, name, n_power_iterations, eps, axis).install(module)


def remove_weight_norm(module: M, name: str = "weight") -> M:
    """Makes the weight of a module with `weight_norm` a parameter again. Returns the module."""
    return _removed(module, name, _WeightNorm)


def remove_spectral_norm(module: M, name: str = "weight") -> M:
    """Makes the weight of a module with `spectral_norm` a parameter again. Returns the module."""
    return _removed(module, name, _SpectralNorm)


def _removed(module: M, name: str, kind: type[_Computed]) -> M:
    for hook in module._hooks:
        function = hook.function
        if isinstance(function, kind) and function.name == name:
            with no_grad():
                weight = np.array(function.weight(module).numpy())
            object.__setattr__(module, "_hooks", tuple(h for h in module._hooks if h is not hook))
            for end in function.suffixes:
                delattr(module, f"{name}{end}")
            object.__delattr__(module, name)
            setattr(module, name, Parameter(weight))
            module.note_change()
            return module
    raise ValueError(f"{type(module).__name__} has no norm of {name!r} to remove")
