"""What textbooks say a collective costs, what our plan of it costs, and why the two differ.

Textbooks leave out additions and numbers of ranks that are not a power of two. What our plans pay
for these, and where another way was chosen, is a list of differences: textbook plus differences is
the cost of the plan, to the last digit. `formula.py` explains the letters.
"""

from nnmpi.sim.formula import Cost, Difference

_ADDITIONS = "additions, which textbooks leave out"
_SERVER = "the server answers one rank at a time, and each message pays its alpha"
_LEVELS = "a tree has whole levels: log p is rounded up"
_FOLD_ROUNDS = "ranks that are not a power of two fold first and unfold last"
_FOLD_BYTES = "folding moves whole buffers"
_UNEVEN = "after folding some ranks answer for two chunks"

_RING_PLAN = "2(p-1)a + (p-1)/p M(2b+g)"
_RING_ADDITIONS = Difference("(p-1)/p Mg", _ADDITIONS)
_SERVER_ADDITIONS = Difference("(p-1)Mg", _ADDITIONS)
_HALVING_ADDITIONS = Difference("(f + S/p)Mg", _ADDITIONS)

ALL_REDUCE = {
    "ring": Cost("2(p-1)a + 2(p-1)/p Mb", _RING_PLAN, (_RING_ADDITIONS,)),
    "tree": Cost(
        "2a log p + 2 log p Mb",
        "2La + LM(2b+g)",
        (Difference("2(L - log p)(a + Mb)", _LEVELS), Difference("LMg", _ADDITIONS)),
    ),
    "ps": Cost(
        "2a + 2(p-1)Mb",
        "2(p-1)a + (p-1)M(2b+g)",
        (Difference("2(p-2)a", _SERVER), _SERVER_ADDITIONS),
    ),
    "p2p": Cost(
        "(p-1)(a + Mb)",
        _RING_PLAN,
        (
            Difference("(p-1)a", "sums have to be gathered again"),
            Difference("(p-1)(2/p - 1)Mb", "chunks travel twice instead of whole buffers once"),
            _RING_ADDITIONS,
        ),
    ),
    "doubling": Cost(
        "a log p + log p Mb",
        "(k+2f)(a + Mb) + (k+f)Mg",
        (
            Difference("(k + 2f - log p)(a + Mb)", _FOLD_ROUNDS),
            Difference("(k+f)Mg", _ADDITIONS),
        ),
    ),
    "halving": Cost(
        "2a log p + 2(p-1)/p Mb",
        "2(k+f)a + (f + S/p)M(2b+g)",
        (
            Difference("2(k + f - log p)a", _FOLD_ROUNDS),
            Difference("2fMb", _FOLD_BYTES),
            Difference("2(S-p+1)/p Mb", _UNEVEN),
            _HALVING_ADDITIONS,
        ),
    ),
    "hierarchical": Cost(None, "2ha' + hM(2b'+g) + 2(n-1)a + (n-1)/n M(2b+g)"),
    "p2p-whole": Cost("(p-1)(a + Mb)", "(p-1)(a + Mb + Mg)", (_SERVER_ADDITIONS,)),
}

_SCATTER = Cost("(p-1)a + (p-1)/p Mb", "(p-1)a + (p-1)/p M(b+g)", (_RING_ADDITIONS,))
_HALVES = (
    Difference("(k + 2f - log p)a", _FOLD_ROUNDS),
    Difference("f(p+1)/p Mb", _FOLD_BYTES),
    Difference("(S-p+1)/p Mb", _UNEVEN),
)

REDUCE_SCATTER = {
    "ring": _SCATTER,
    "p2p": _SCATTER,
    "halving": Cost(
        "a log p + (p-1)/p Mb",
        "(k+2f)a + (f + (S+f)/p)Mb + (f + S/p)Mg",
        (*_HALVES, _HALVING_ADDITIONS),
    ),
}

_GATHER_TEXTBOOK = "a log p + (p-1)mb"
_GATHER = Cost(
    _GATHER_TEXTBOOK,
    "(p-1)a + (p-1)mb",
    (Difference("(p - 1 - log p)a", "a message from each other rank; halving takes log p rounds"),),
)

ALL_GATHER = {
    "ring": _GATHER,
    "p2p": _GATHER,
    "halving": Cost(_GATHER_TEXTBOOK, "(k+2f)a + (f + (S+f)/p)Mb", _HALVES),
}

BROADCAST = {
    "tree": Cost("a log p + log p Mb", "La + LMb", (Difference("(L - log p)(a + Mb)", _LEVELS),)),
    "ps": Cost("a + (p-1)Mb", "(p-1)a + (p-1)Mb", (Difference("(p-2)a", _SERVER),)),
}

REDUCE = {
    "tree": Cost(
        "a log p + log p Mb",
        "La + LM(b+g)",
        (Difference("(L - log p)(a + Mb)", _LEVELS), Difference("LMg", _ADDITIONS)),
    ),
    "ps": Cost(
        "a + (p-1)Mb",
        "(p-1)a + (p-1)M(b+g)",
        (Difference("(p-2)a", _SERVER), _SERVER_ADDITIONS),
    ),
}
