"""The cost of collectives by textbook formulas and by our algorithms, and why the two differ.

Textbooks leave out additions and numbers of ranks that are not a power of two. Our algorithms pay
for these, and sometimes exchange data differently. Each such cost is in a list of differences:
textbook plus differences is the cost of the algorithm, to the last digit. Formulas are Python
arithmetic over these letters:

p  ranks                  M  bytes in the buffer     m  M/p, a rank's share of it
a  alpha, a message       b  beta, a byte            g  gamma, adding a byte
L  log p, rounded up      k  log p, rounded down     f  1 if p is no power of two, else 0
S  the chunks, of p, in the largest messages of a halving: d + min(d, e) for d = 1, 2, ... 2^(k-1),
   where e = p - 2^k ranks have to sit out
q  2^k, the ranks that do not sit out
R  rounds of recursive multiplying, one way: for each four and each other prime factor f of p,
   (f-1)/3 rounded up, since a rank exchanges with three others in a round
T  rounds of a double tree, one way: k + 7 with 8 chunks, which follow each other
W  chunks that the busiest rank receives in these 2 T rounds
D  messages of a dual-root all-reduce that wait for each other, of which the first E are added
U  rounds of PAT, one way: L up to 16 ranks, then more, since a message has at most 8 chunks
C  chunks, of p, that a rank sends in Bruck's all-to-all: bits in 0..p-1
n  nodes                  s  ranks in a full node    h  log2 of s, rounded up
a_in and b_in  alpha and beta of the link inside a node, a' and b' in printed formulas
"""

from collections.abc import Mapping
from math import log2
from typing import NamedTuple

from nnmpi.collectives.algorithms import Collective
from nnmpi.collectives.combine import factors
from nnmpi.collectives.double_tree import CHUNKS
from nnmpi.collectives.dual_root import BLOCKS
from nnmpi.collectives.price import Network
from nnmpi.collectives.step import levels


class Formulas(NamedTuple):
    """The cost of an algorithm as formulas: plan = textbook + differences, if a textbook has one.

    plan         the cost of our implementation
    differences  terms that it costs beyond the textbook (or less, if negative), and why
    """

    textbook: str | None
    plan: str
    differences: Mapping[str, str] = {}


def letter_values(p: int, nbytes: float, network: Network) -> dict[str, float]:
    """Returns the value of each letter of the formulas (see the module's docstring). A network of
    one level counts as nodes of two ranks, with the same link inside a node."""
    k = p.bit_length() - 1
    e, rounds = p - (1 << k), (k + CHUNKS - 1) * (p > 1)
    added, after = _dual_root_messages(p)
    inner, per_node = (network.inner, network.per_node) if network.inner else (network.link, 2)
    return {
        "p": p,
        "M": nbytes,
        "m": nbytes / p,
        "a": network.link.alpha,
        "b": network.link.beta,
        "g": network.gamma,
        "log_p": log2(p),
        "L": levels(p),
        "k": k,
        "f": int(e > 0),
        "S": sum(d + min(d, e) for d in (1 << i for i in range(k))),
        "q": 1 << k,
        "R": sum(-(-(f - 1) // 3) for f in factors(p)),
        "T": rounds,
        "W": rounds if p <= 2 else 2 * rounds - (e == 0),
        "D": added + after,
        "E": added,
        "U": (1 << levels(p) - 3) + 2 if p > 8 else levels(p),
        "C": sum((p >> i + 1 << i) + max(p % (2 << i) - (1 << i), 0) for i in range(k + 1)),
        "n": -(-p // per_node),
        "s": min(p, per_node),
        "h": levels(min(p, per_node)),
        "a_in": inner.alpha,
        "b_in": inner.beta,
    }


def _dual_root_messages(p: int) -> tuple[int, int]:
    """Returns the lengths, in messages, of two chains in which each message waits for the one
    before it, in a dual-root all-reduce. There two trees of ranks sum blocks up to their roots, the
    roots exchange these sums, and the sums go down the trees. The first chain is the longest one
    until the roots have exchanged the last block, the second the longest one after that.

    The first chain begins at the first leaf on the lowest level; its block waits for those of
    siblings on the way up. The second one ends at the leaf whose path from the root has the most
    second children.
    """
    if p == 1:
        return 0, 0
    n = p - p // 2
    depth = n.bit_length() - 1
    last = n - (1 << depth)  # leaf of the lowest level
    up = 2 * depth - (depth > 0 and last == 0)
    down = max(depth + (last + 1).bit_length() - 1, 2 * (depth - 1))
    return min(n, 3) * (BLOCKS - 1) + up + 1, down


def evaluate(formula: str, values: Mapping[str, float]) -> float:
    """Returns a formula's value by letters; formulas are literals of this file."""
    return float(eval(formula, {}, values))


def typeset(formula: str) -> str:
    """Returns a formula as printed: `2(p-1)a + (p-1)/p M(2b+g)`."""
    for code, paper in ((" * ", " "), ("*", ""), ("log_p", "log p"), ("_in", "'")):
        formula = formula.replace(code, paper)
    return formula


_ADDITIONS = "additions, which textbooks leave out"
_SERVER = "the server answers one rank at a time, and each message pays its alpha"
_LEVELS = "a tree has whole levels: log p is rounded up"
_FOLD_ROUNDS = "ranks that are not a power of two fold first and unfold last"
_ROUNDS = "log p rounds are rounded up"
_FULL = "a message has at most eight chunks, so there are more rounds from 17 ranks on"
_FACTORS = "fours are exchanged in a round, other prime factors in more or in a smaller one"
_FOLD_BYTES = "folding moves whole buffers"
_UNEVEN = "after folding some ranks answer for two chunks"

_RING_PLAN = "2*(p-1)*a + (p-1)/p * M*(2*b+g)"
_RING_ADDITIONS = {"(p-1)/p * M*g": _ADDITIONS}
_SERVER_ADDITIONS = {"(p-1)*M*g": _ADDITIONS}
_TREE_ADDITIONS = {"L*M*g": _ADDITIONS}
_HALVING_ADDITIONS = {"(f + S/p)*M*g": _ADDITIONS}

ALL_REDUCE = {
    "ring": Formulas("2*(p-1)*a + 2*(p-1)/p * M*b", _RING_PLAN, _RING_ADDITIONS),
    "tree": Formulas(
        "2*a * log_p + 2 * log_p * M*b",
        "2*L*a + L*M*(2*b+g)",
        {"2*(L - log_p)*(a + M*b)": _LEVELS} | _TREE_ADDITIONS,
    ),
    "ps": Formulas(
        "2*a + 2*(p-1)*M*b",
        "2*(p-1)*a + (p-1)*M*(2*b+g)",
        {"2*(p-2)*a": _SERVER} | _SERVER_ADDITIONS,
    ),
    "p2p": Formulas(
        "(p-1)*(a + M*b)",
        _RING_PLAN,
        {
            "(p-1)*a": "sums have to be gathered again",
            "(p-1)*(2/p - 1)*M*b": "chunks travel twice instead of whole buffers once",
            **_RING_ADDITIONS,
        },
    ),
    "doubling": Formulas(
        "a * log_p + log_p * M*b",
        "(k+2*f)*(a + M*b) + (k+f)*M*g",
        {"(k + 2*f - log_p)*(a + M*b)": _FOLD_ROUNDS, "(k+f)*M*g": _ADDITIONS},
    ),
    "halving": Formulas(
        "2*a * log_p + 2*(p-1)/p * M*b",
        "2*(k+f)*a + (f + S/p)*M*(2*b+g)",
        {
            "2*(k + f - log_p)*a": _FOLD_ROUNDS,
            "2*f*M*b": _FOLD_BYTES,
            "2*(S-p+1)/p * M*b": _UNEVEN,
            **_HALVING_ADDITIONS,
        },
    ),
    "double-tree": Formulas(
        "2*a * log_p + 2*M*b",
        "2*T*a + W/16 * M*(2*b+g)",
        {
            "2*(T - log_p)*a": "chunks follow each other, each a round later",
            "(W/8 - 2)*M*b": "a rank waits while the first chunks come and the last ones go",
            "W/16 * M*g": _ADDITIONS,
        },
    ),
    "dual-root": Formulas(
        "4*a * log_p + 3*M*b",
        "D*a + M/16 * (D*b+E*g)",
        {
            "(D - 4*log_p)*a": "blocks follow each other, at best three messages later",
            "(D/16 - 3)*M*b": "a rank waits while the first blocks come and the last ones go",
            "E/16 * M*g": _ADDITIONS,
        },
    ),
    "bruck": Formulas(
        "2*a * log_p + 2*(p-1)/p * M*b",
        "2*L*a + (p-1)/p * M*(2*b+g)",
        {"2*(L - log_p)*a": _ROUNDS, **_RING_ADDITIONS},
    ),
    "pat": Formulas(
        "2*a * log_p + 2*(p-1)/p * M*b",
        "2*U*a + (p-1)/p * M*(2*b+g)",
        {"2*(U - log_p)*a": _FULL, **_RING_ADDITIONS},
    ),
    "multiplying": Formulas(
        "a * log_p + 2*(p-1)/p * M*b",
        "2*R*a + (p-1)/p * M*(2*b+g)",
        {"(2*R - log_p)*a": _FACTORS, **_RING_ADDITIONS},
    ),
    "bucket": Formulas("2*(p-1)*a + 2*(p-1)/p * M*b", _RING_PLAN, _RING_ADDITIONS),
    "swing": Formulas(
        "2*a * log_p + 2*(p-1)/p * M*b",
        "2*(k+f)*a + (f + (q-1)/q)*M*(2*b+g)",
        {
            "2*(k + f - log_p)*a": _FOLD_ROUNDS,
            "2*f*M*b": _FOLD_BYTES,
            "2*(1/p - 1/q)*M*b": "the ranks that remain after folding exchange less",
            "(f + (q-1)/q)*M*g": _ADDITIONS,
        },
    ),
    "hierarchical": Formulas(None, "2*h*a_in + h*M*(2*b_in+g) + 2*(n-1)*a + (n-1)/n * M*(2*b+g)"),
    "p2p-whole": Formulas("(p-1)*(a + M*b)", "(p-1)*(a + M*b + M*g)", _SERVER_ADDITIONS),
}

THROUGH_MEMORY = Formulas(None, "2*a_in + M*(2*b_in+(s-1)*g) + 2*(n-1)*a + (n-1)/n * M*(2*b+g)")
"""The cost of `hierarchical` where nodes sum in their memory: on networks with nodes."""

_SCATTER = Formulas("(p-1)*a + (p-1)/p * M*b", "(p-1)*a + (p-1)/p * M*(b+g)", _RING_ADDITIONS)
_HALVES = {
    "(k + 2*f - log_p)*a": _FOLD_ROUNDS,
    "f*(p+1)/p * M*b": _FOLD_BYTES,
    "(S-p+1)/p * M*b": _UNEVEN,
}

REDUCE_SCATTER = {
    "ring": _SCATTER,
    "p2p": _SCATTER,
    "halving": Formulas(
        "a * log_p + (p-1)/p * M*b",
        "(k+2*f)*a + (f + (S+f)/p)*M*b + (f + S/p)*M*g",
        _HALVES | _HALVING_ADDITIONS,
    ),
    "bruck": Formulas(
        "a * log_p + (p-1)/p * M*b",
        "L*a + (p-1)/p * M*(b+g)",
        {"(L - log_p)*a": _ROUNDS, **_RING_ADDITIONS},
    ),
    "pat": Formulas(
        "a * log_p + (p-1)/p * M*b",
        "U*a + (p-1)/p * M*(b+g)",
        {"(U - log_p)*a": _FULL, **_RING_ADDITIONS},
    ),
}

_GATHER_TEXTBOOK = "a * log_p + (p-1)*m*b"
_GATHER = Formulas(
    _GATHER_TEXTBOOK,
    "(p-1)*a + (p-1)*m*b",
    {"(p - 1 - log_p)*a": "a message from each other rank; halving takes log p rounds"},
)

ALL_GATHER = {
    "ring": _GATHER,
    "p2p": _GATHER,
    "halving": Formulas(_GATHER_TEXTBOOK, "(k+2*f)*a + (f + (S+f)/p)*M*b", _HALVES),
    "bruck": Formulas(_GATHER_TEXTBOOK, "L*a + (p-1)*m*b", {"(L - log_p)*a": _ROUNDS}),
    "pat": Formulas(_GATHER_TEXTBOOK, "U*a + (p-1)*m*b", {"(U - log_p)*a": _FULL}),
}

ALL_TO_ALL = {
    "p2p": Formulas("(p-1)*(a + m*b)", "(p-1)*(a + m*b)"),
    "bruck": Formulas(
        "a * log_p + log_p * M/2 * b",
        "L*a + C*m*b",
        {"(L - log_p)*a": _ROUNDS, "(C/p - log_p/2)*M*b": "the last rounds send less than half"},
    ),
}

_TREE_TEXTBOOK, _TREE_LEVELS = "a * log_p + log_p * M*b", {"(L - log_p)*(a + M*b)": _LEVELS}
_SERVER_TEXTBOOK, _SERVER_TURNS = "a + (p-1)*M*b", {"(p-2)*a": _SERVER}

BROADCAST = {
    "tree": Formulas(_TREE_TEXTBOOK, "L*a + L*M*b", _TREE_LEVELS),
    "ps": Formulas(_SERVER_TEXTBOOK, "(p-1)*a + (p-1)*M*b", _SERVER_TURNS),
}

REDUCE = {
    "tree": Formulas(_TREE_TEXTBOOK, "L*a + L*M*(b+g)", _TREE_LEVELS | _TREE_ADDITIONS),
    "ps": Formulas(_SERVER_TEXTBOOK, "(p-1)*a + (p-1)*M*(b+g)", _SERVER_TURNS | _SERVER_ADDITIONS),
}

COSTS = {
    Collective.ALL_REDUCE: ALL_REDUCE,
    Collective.REDUCE_SCATTER: REDUCE_SCATTER,
    Collective.ALL_GATHER: ALL_GATHER,
    Collective.ALL_TO_ALL: ALL_TO_ALL,
    Collective.BROADCAST: BROADCAST,
    Collective.REDUCE: REDUCE,
}
"""The formulas of each collective, by the names of its algorithms."""
