"""einsum: sums of products along axes that are named by letters."""

from collections.abc import Callable, Sequence
from string import ascii_letters

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels import Result
from nnmpi.arrays.kernels.precision import widened


@widened
def einsum(*arrays: Array, equation: str) -> Result:
    """The sum over all letters that are not in the output of the product of the elements."""
    xp, (inputs, output) = xp_of(arrays[0]), _letters(equation, [a.ndim for a in arrays])
    sizes: dict[str, int] = {}
    for a, term in zip(arrays, inputs, strict=True):
        for c, n in zip(term, a.shape, strict=True):
            known = sizes.get(c, 1)
            if n != known and 1 not in (n, known):
                shapes = ", ".join(str(a.shape) for a in arrays)
                raise ValueError(f"einsum: {equation!r} does not fit shapes {shapes}")
            sizes[c] = n if known == 1 else known

    def summed(terms: Sequence[str], to: str, *factors: Array) -> Array:
        return xp.einsum(f"{','.join(terms)}->{to}", *factors, optimize=True)

    def vjp_of(k: int) -> Callable[[Array, Array | None], Array]:
        shape, term = arrays[k].shape, inputs[k]
        length = dict(zip(term, shape, strict=True))  # of each letter once
        others, terms = [*arrays[:k], *arrays[k + 1 :]], [*inputs[:k], *inputs[k + 1 :]]

        def vjp(g: Array, out: Array | None) -> Array:
            # what is nowhere else has one gradient for all; what was repeated gets a sum
            there = {*output, *"".join(terms)}
            kept = [c for c, n in length.items() if c in there and n == sizes[c]]
            d = summed([output, *terms], "".join(kept), g, *others)
            lengths = dict(zip(kept, d.shape, strict=True))  # 1 where all other terms have it
            d = d.reshape([lengths.get(c, 1) for c in length])
            d = xp.broadcast_to(d, tuple(length.values()))
            if len(length) == len(term):
                return d
            whole = xp.zeros(shape, g.dtype)
            summed([term], "".join(length), whole)[...] = d  # a view of the diagonal
            return whole

        return vjp

    vjps = tuple(map(vjp_of, range(len(arrays))))
    is_view = len(arrays) == 1 and {*output} == {*inputs[0]}  # else numbers are summed
    return Result(summed(inputs, output, *arrays), vjps, is_view=is_view)


def _letters(equation: str, axes: Sequence[int]) -> tuple[list[str], str]:
    """The letters of each input and of the output; those in the place of dots are free ones."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms, dots = left.split(","), "..."
    named = [term.replace(dots, "", 1) for term in terms]
    output = right.replace(dots, "", 1)
    letters = "".join(named)
    if not {*letters, *output} <= {*ascii_letters} or not {*output} <= {*letters}:
        raise ValueError(
            f"einsum: {equation!r} must be letters and '...', as in 'bij,bjk->bik', and what is "
            "behind the arrow must be before it too"
        )
    rest = [n - len(names) for n, names in zip(axes, named, strict=False)]
    fits = [n >= 0 and (n == 0 or dots in term) for n, term in zip(rest, terms, strict=False)]
    if len(terms) != len(axes) or not all(fits) or len({*output}) < len(output):
        raise ValueError(
            f"einsum: {equation!r} for tensors of {', '.join(map(str, axes))} axes: it needs a "
            "term for each tensor, a letter for each axis, and each letter of the output once"
        )
    most = max(rest)
    free = "".join([c for c in ascii_letters if c not in equation][:most])
    if not arrow:
        right = dots + "".join(sorted(c for c in {*letters} if letters.count(c) == 1))
    inputs = [t.replace(dots, free[most - n :]) for t, n in zip(terms, rest, strict=True)]
    return inputs, right.replace(dots, free)
