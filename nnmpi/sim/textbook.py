"""What textbooks say a collective costs, what our plan of it costs, and why the two differ.

Textbooks leave out additions and the ranks that are not a power of two. What our plans pay for
these, and where we chose another way, is a list of differences: textbook plus differences is what
the plan costs, to the last digit. The letters are explained in
`formula.py`.
"""

from collections.abc import Callable

from nnmpi.sim.formula import Cost, Difference, Formula, Letters


def _adding(text: str, seconds: Callable[[Letters], float]) -> Difference:
    return Difference("additions, which textbooks leave out", Formula(text, seconds))


def _server(text: str, times: int) -> Difference:
    why = "the server answers one rank at a time, and each message pays its alpha"
    return Difference(why, Formula(text, lambda x: times * (x.p - 2) * x.a))


def _rounded(text: str, times: int) -> Difference:
    why = "a tree has whole levels: log p is rounded up"
    return Difference(why, Formula(text, lambda x: times * (x.L - x.log) * (x.a + x.M * x.b)))


_FOLD_ROUNDS = "ranks that are not a power of two fold first and unfold last"
_FOLD_BYTES = "folding moves whole buffers"
_UNEVEN = "after folding some ranks answer for two chunks"

_RING = Formula("2(p-1)a + 2(p-1)/p Mb", lambda x: 2 * (x.p - 1) * (x.a + x.m * x.b))
_RING_PLAN = Formula(
    "2(p-1)a + (p-1)/p M(2b+g)", lambda x: (x.p - 1) * (2 * x.a + x.m * (2 * x.b + x.g))
)
_RING_ADDING = _adding("(p-1)/p Mg", lambda x: (x.p - 1) * x.m * x.g)
_EXCHANGE = Formula("(p-1)(a + Mb)", lambda x: (x.p - 1) * (x.a + x.M * x.b))

ALL_REDUCE = {
    "ring": Cost(_RING, _RING_PLAN, (_RING_ADDING,)),
    "tree": Cost(
        Formula("2a log p + 2 log p Mb", lambda x: 2 * x.log * (x.a + x.M * x.b)),
        Formula("2La + LM(2b+g)", lambda x: x.L * (2 * x.a + x.M * (2 * x.b + x.g))),
        (
            _rounded("2(L - log p)(a + Mb)", 2),
            _adding("LMg", lambda x: x.L * x.M * x.g),
        ),
    ),
    "ps": Cost(
        Formula("2a + 2(p-1)Mb", lambda x: 2 * x.a + 2 * (x.p - 1) * x.M * x.b),
        Formula("2(p-1)a + (p-1)M(2b+g)", lambda x: (x.p - 1) * (2 * x.a + x.M * (2 * x.b + x.g))),
        (
            _server("2(p-2)a", 2),
            _adding("(p-1)Mg", lambda x: (x.p - 1) * x.M * x.g),
        ),
    ),
    "p2p": Cost(
        _EXCHANGE,
        _RING_PLAN,
        (
            Difference(
                "sums have to be gathered again",
                Formula("(p-1)a", lambda x: (x.p - 1) * x.a),
            ),
            Difference(
                "chunks travel twice instead of whole buffers once",
                Formula("(p-1)(2/p - 1)Mb", lambda x: (x.p - 1) * (2 / x.p - 1) * x.M * x.b),
            ),
            _RING_ADDING,
        ),
    ),
    "doubling": Cost(
        Formula("a log p + log p Mb", lambda x: x.log * (x.a + x.M * x.b)),
        Formula(
            "(k+2f)(a + Mb) + (k+f)Mg",
            lambda x: (x.k + 2 * x.f) * (x.a + x.M * x.b) + (x.k + x.f) * x.M * x.g,
        ),
        (
            Difference(
                _FOLD_ROUNDS,
                Formula(
                    "(k + 2f - log p)(a + Mb)",
                    lambda x: (x.k + 2 * x.f - x.log) * (x.a + x.M * x.b),
                ),
            ),
            _adding("(k+f)Mg", lambda x: (x.k + x.f) * x.M * x.g),
        ),
    ),
    "halving": Cost(
        Formula("2a log p + 2(p-1)/p Mb", lambda x: 2 * x.a * x.log + 2 * (x.p - 1) * x.m * x.b),
        Formula(
            "2(k+f)a + (f + S/p)M(2b+g)",
            lambda x: 2 * (x.k + x.f) * x.a + (x.f + x.S / x.p) * x.M * (2 * x.b + x.g),
        ),
        (
            Difference(
                _FOLD_ROUNDS,
                Formula("2(k + f - log p)a", lambda x: 2 * (x.k + x.f - x.log) * x.a),
            ),
            Difference(_FOLD_BYTES, Formula("2fMb", lambda x: 2 * x.f * x.M * x.b)),
            Difference(
                _UNEVEN, Formula("2(S-p+1)/p Mb", lambda x: 2 * (x.S - x.p + 1) * x.m * x.b)
            ),
            _adding("(f + S/p)Mg", lambda x: (x.f + x.S / x.p) * x.M * x.g),
        ),
    ),
    "hierarchical": Cost(
        None,
        Formula(
            "2ha' + hM(2b'+g) + 2(n-1)a + (n-1)/n M(2b+g)",
            lambda x: (
                x.h * (2 * x.inner_a + x.M * (2 * x.inner_b + x.g))
                + (x.n - 1) * (2 * x.a + x.M / x.n * (2 * x.b + x.g))
            ),
        ),
    ),
    "p2p-whole": Cost(
        _EXCHANGE,
        Formula("(p-1)(a + Mb + Mg)", lambda x: (x.p - 1) * (x.a + x.M * (x.b + x.g))),
        (_adding("(p-1)Mg", lambda x: (x.p - 1) * x.M * x.g),),
    ),
}

_SCATTER = Formula("(p-1)a + (p-1)/p Mb", lambda x: (x.p - 1) * (x.a + x.m * x.b))
_SCATTER_PLAN = Formula("(p-1)a + (p-1)/p M(b+g)", lambda x: (x.p - 1) * (x.a + x.m * (x.b + x.g)))
_HALVES = (
    Difference(_FOLD_ROUNDS, Formula("(k + 2f - log p)a", lambda x: (x.k + 2 * x.f - x.log) * x.a)),
    Difference(_FOLD_BYTES, Formula("f(p+1)/p Mb", lambda x: x.f * (x.p + 1) * x.m * x.b)),
    Difference(_UNEVEN, Formula("(S-p+1)/p Mb", lambda x: (x.S - x.p + 1) * x.m * x.b)),
)

REDUCE_SCATTER = {
    "ring": Cost(_SCATTER, _SCATTER_PLAN, (_RING_ADDING,)),
    "p2p": Cost(_SCATTER, _SCATTER_PLAN, (_RING_ADDING,)),
    "halving": Cost(
        Formula("a log p + (p-1)/p Mb", lambda x: x.a * x.log + (x.p - 1) * x.m * x.b),
        Formula(
            "(k+2f)a + (f + (S+f)/p)Mb + (f + S/p)Mg",
            lambda x: (
                (x.k + 2 * x.f) * x.a
                + (x.f + (x.S + x.f) / x.p) * x.M * x.b
                + (x.f + x.S / x.p) * x.M * x.g
            ),
        ),
        (*_HALVES, _adding("(f + S/p)Mg", lambda x: (x.f + x.S / x.p) * x.M * x.g)),
    ),
}

_GATHER = Formula("a log p + (p-1)mb", lambda x: x.a * x.log + (x.p - 1) * x.m * x.b)
_ONE_EACH = Cost(
    _GATHER,
    Formula("(p-1)a + (p-1)mb", lambda x: (x.p - 1) * (x.a + x.m * x.b)),
    (
        Difference(
            "a message from each other rank; halving takes log p rounds",
            Formula("(p - 1 - log p)a", lambda x: (x.p - 1 - x.log) * x.a),
        ),
    ),
)

ALL_GATHER = {
    "ring": _ONE_EACH,
    "p2p": _ONE_EACH,
    "halving": Cost(
        _GATHER,
        Formula(
            "(k+2f)a + (f + (S+f)/p)Mb",
            lambda x: (x.k + 2 * x.f) * x.a + (x.f + (x.S + x.f) / x.p) * x.M * x.b,
        ),
        _HALVES,
    ),
}

_LEVELS = Formula("a log p + log p Mb", lambda x: x.log * (x.a + x.M * x.b))
_SERVED = Formula("a + (p-1)Mb", lambda x: x.a + (x.p - 1) * x.M * x.b)

BROADCAST = {
    "tree": Cost(
        _LEVELS,
        Formula("La + LMb", lambda x: x.L * (x.a + x.M * x.b)),
        (_rounded("(L - log p)(a + Mb)", 1),),
    ),
    "ps": Cost(
        _SERVED,
        Formula("(p-1)a + (p-1)Mb", lambda x: (x.p - 1) * (x.a + x.M * x.b)),
        (_server("(p-2)a", 1),),
    ),
}

REDUCE = {
    "tree": Cost(
        _LEVELS,
        Formula("La + LM(b+g)", lambda x: x.L * (x.a + x.M * (x.b + x.g))),
        (_rounded("(L - log p)(a + Mb)", 1), _adding("LMg", lambda x: x.L * x.M * x.g)),
    ),
    "ps": Cost(
        _SERVED,
        Formula("(p-1)a + (p-1)M(b+g)", lambda x: (x.p - 1) * (x.a + x.M * (x.b + x.g))),
        (_server("(p-2)a", 1), _adding("(p-1)Mg", lambda x: (x.p - 1) * x.M * x.g)),
    ),
}
