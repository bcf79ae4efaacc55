"""The op einsum: sums of products of arrays, along axes that an equation of letters names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from string import ascii_letters

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.dtypes import is_float
from nnmpi.arrays.kernels import Result
from nnmpi.arrays.kernels.precision import widened


def einsum(*arrays: Array, equation: str) -> Result:
    """np.einsum(equation, *arrays) with its gradients."""
    inputs, output = _letters(equation, [a.ndim for a in arrays])
    op = partial(_summed, equation=equation, inputs=inputs, output=output)
    if len(arrays) == 1 and {*inputs[0]} == {*output}:  # a view; otherwise NumPy sums into a copy
        return op(*arrays)._replace(is_view=True)
    # PyTorch sums a letter of one term alone, of integers in int64; its products keep their type
    is_alone = (sum(c in term for term in inputs) == 1 for c in {*"".join(inputs)} - {*output})
    if any(is_alone) and not any(is_float(a.dtype) for a in arrays):
        arrays = tuple(a.astype("int64") for a in arrays)
    return widened(op)(*arrays)


def _summed(*arrays: Array, equation: str, inputs: Sequence[str], output: str) -> Result:
    """The result of the equation, whose letters of each input and of the output are given."""
    xp = xp_of(arrays[0])
    sizes: dict[str, int] = {}
    for a, term in zip(arrays, inputs, strict=True):
        for c, n in zip(term, a.shape, strict=True):
            size = sizes.get(c, 1)
            if n != size and 1 not in (n, size):
                shapes = ", ".join(str(a.shape) for a in arrays)
                raise ValueError(
                    f"einsum: {equation!r} does not fit shapes {shapes}: give the axes {c!r} one "
                    f"length, not {size} and {n}"
                )
            sizes[c] = n if size == 1 else size

    def summed(terms: Sequence[str], to: str, *factors: Array) -> Array:
        return xp.einsum(f"{','.join(terms)}->{to}", *factors, optimize=True)

    def vjp_of(k: int) -> Callable[[Array, Array | None], Array]:
        shape, term = arrays[k].shape, inputs[k]
        length = dict(zip(term, shape, strict=True))  # a repeated letter ("ii") occurs once here
        others, terms = [*arrays[:k], *arrays[k + 1 :]], [*inputs[:k], *inputs[k + 1 :]]

        def vjp(g: Array, out: Array | None) -> Array:
            # a letter that occurs in this term only was summed: its elements share one gradient.
            # A letter of length 1 here that was broadcast gets the sum over that axis.
            present = {*output, *"".join(terms)}
            letters = [c for c, n in length.items() if c in present and n == sizes[c]]
            d = summed([output, *terms], "".join(letters), g, *others)
            lengths = dict(zip(letters, d.shape, strict=True))  # 1 if it is 1 in all other terms
            d = d.reshape([lengths.get(c, 1) for c in length])
            d = xp.broadcast_to(d, tuple(length.values()))
            if len(length) == len(term):
                return d
            gradient = xp.zeros(shape, g.dtype)
            summed([term], "".join(length), gradient)[...] = d  # a view of the diagonal
            return gradient

        return vjp

    vjps = tuple(map(vjp_of, range(len(arrays))))
    return Result(summed(inputs, output, *arrays), vjps)


def _letters(equation: str, axes: Sequence[int]) -> tuple[list[str], str]:
    """Returns the letters of each input and of the output, with unused letters for an ellipsis;
    `axes` are the numbers of axes of the inputs."""
    inputs_text, arrow, right = equation.replace(" ", "").partition("->")
    terms, dots = inputs_text.split(","), "..."
    named = [term.replace(dots, "", 1) for term in terms]
    output = right.replace(dots, "", 1)
    letters = "".join(named)
    known = {*letters} & {*ascii_letters}
    wrong = [c for c in letters + output if c not in known or output.count(c) > 1]
    if wrong:
        raise ValueError(
            f"einsum: {wrong[0]!r} in {equation!r} does not fit: write letters and '...', as in "
            "'bij,bjk->bik', and after the arrow each letter only once that is before it"
        )
    unnamed = [n - len(names) for n, names in zip(axes, named, strict=False)]
    fits = [n >= 0 and (n == 0 or dots in term) for n, term in zip(unnamed, terms, strict=False)]
    if len(terms) != len(axes) or not all(fits):
        raise ValueError(
            f"einsum: {equation!r} for tensors with {', '.join(map(str, axes))} axes: it needs a "
            "term for each tensor, and a letter for each axis"
        )
    # axes under "..." get unused letters, matched from the last axis as in broadcasting
    longest = max(unnamed)
    free = "".join([c for c in ascii_letters if c not in equation][:longest])
    if not arrow:
        right = dots + "".join(sorted(c for c in {*letters} if letters.count(c) == 1))
    inputs = [t.replace(dots, free[longest - n :]) for t, n in zip(terms, unnamed, strict=True)]
    return inputs, right.replace(dots, free)
