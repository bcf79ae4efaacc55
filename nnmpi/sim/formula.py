"""Cost formulas: one text for each, which is printed as it stands and evaluated for numbers.

Factors stand side by side, as on paper: `2(p-1)a + (p-1)/p M(2b+g)`. The letters:

p  ranks                  M  bytes in the buffer     m  M/p, a rank's share of it
a  alpha, a message       b  beta, a byte            g  gamma, adding a byte
L  log p, rounded up      k  log p, rounded down
e  p - 2^k, how many ranks have to sit out           f  1 if e > 0, else 0
S  the chunks, of p, in the largest messages of a halving: d + min(d, e) for d = 1, 2, ... 2^(k-1)
q  ranks in a node        n  nodes                   h  log2 of the ranks in a full node, rounded up
a' and b'  alpha and beta of the link inside a node
"""

import re
from collections.abc import Mapping
from math import log2
from typing import NamedTuple

from nnmpi.collectives.algorithms import levels
from nnmpi.collectives.price import Network

_TOKEN = re.compile(r"log p|[A-Za-z]'?|\d+|[-+/()]")


class Difference(NamedTuple):
    """What a plan costs beyond the textbook formula (or less, if negative), and why."""

    formula: str
    why: str


class Cost(NamedTuple):
    """plan = textbook + differences, where there is a textbook formula."""

    textbook: str | None
    plan: str
    differences: tuple[Difference, ...] = ()


def letters(p: int, nbytes: float, network: Network, per_node: int = 2) -> dict[str, float]:
    """The value of each letter; without an inner link, all ranks are joined by the outer one."""
    k = p.bit_length() - 1
    e = p - (1 << k)
    inner = network.inner or network.link
    return {
        "p": p,
        "M": nbytes,
        "m": nbytes / p,
        "a": network.link.alpha,
        "b": network.link.beta,
        "g": network.gamma,
        "log p": log2(p),
        "L": levels(p),
        "k": k,
        "e": e,
        "f": int(e > 0),
        "S": sum(d + min(d, e) for d in (1 << i for i in range(k))),
        "q": per_node,
        "n": -(-p // per_node),
        "h": levels(min(p, per_node)),
        "a'": inner.alpha,
        "b'": inner.beta,
    }


def evaluate(formula: str, values: Mapping[str, float]) -> float:
    """The value of a formula: Python's arithmetic, once `*` stands between factors."""
    code, after_factor = "", False
    for token in _TOKEN.findall(formula):
        if after_factor and token not in "+-/)":
            code += "*"
        code += f"values[{token!r}]" if token[0].isalpha() else token
        after_factor = token not in "+-/("
    return float(eval(code, {"values": values}))  # formulas are literals of textbook.py
