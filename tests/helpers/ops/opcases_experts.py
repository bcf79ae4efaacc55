"""Test cases of ops: mixtures of experts."""

from math import ceil
from typing import Any

import numpy as np
from helpers.ops.opcases import Case

from nnmpi.addons.layer_ways import expert_ops as experts


def routed(t: Any, x: Any, w: Any, top_k: int, factor: float) -> Any:
    """The gates, token by token."""
    samples = []
    for sample in x.reshape(len(x), -1, x.shape[-1]):
        room = [max(ceil(factor * top_k * len(sample) / len(w)), 1)] * len(w)
        tokens = []
        for token in sample:
            p = t.softmax(w @ token, 0)
            best = sorted(range(len(w)), key=lambda e: (-float(p.detach()[e]), e))[:top_k]
            total = sum(p[e] for e in best) if top_k > 1 else 1
            gates = [p[0] * 0] * len(w)
            for e in best:
                room[e] -= 1
                if room[e] >= 0:
                    gates[e] = p[e] / total
            tokens.append(t.stack(gates))
        samples.append(t.stack(tokens))
    return t.stack(samples).reshape(*x.shape[:-1], len(w))


def mixed(
    t: Any, x: Any, gates: Any, *weights: Any, slots: int, activation: str = "gelu", start: int = 0
) -> Any:
    """What the experts make of each token, one by one."""
    act = {"gelu": t.nn.functional.gelu, "relu": t.relu, "silu": t.nn.functional.silu}[activation]
    rows = []
    pairs = zip(x.reshape(-1, x.shape[-1]), gates.reshape(-1, gates.shape[-1]), strict=True)
    for token, gate in pairs:
        y = token * 0
        for e, (w1, b1, w2, b2) in enumerate(zip(*weights, strict=True), start):
            if float(gate.detach()[e]):
                y = y + gate[e] * (w2 @ act(w1 @ token + b1) + b2)
        rows.append(y)
    return t.stack(rows).reshape(x.shape)


def _mixtures() -> dict[str, Case]:
    rng = np.random.default_rng(4)
    cases = {}
    for top_k, factor, x in ((1, 1.0, (2, 6, 3)), (2, 0.6, (3, 7, 3)), (3, 2.0, (4, 3))):
        options: dict[str, Any] = {"top_k": top_k, "factor": factor}
        arrays = rng.standard_normal(x), rng.standard_normal((4, 3))
        cases[f"route: {top_k} of 4, {x}"] = Case(experts.route, arrays, routed, options)
    gates = np.where(rng.random((2, 5, 3)) < 0.6, rng.random((2, 5, 3)), 0.0)
    gates[0, :, 1] = 0  # an expert that no token of a sample goes to
    for activation, start in (("gelu", 0), ("relu", 0), ("silu", 1)):
        E = 3 - start
        sizes = (2, 5, 4), (E, 6, 4), (E, 6), (E, 4, 6), (E, 4)
        x, *weights = (rng.standard_normal(size) for size in sizes)
        options = {"slots": 5, "activation": activation, "start": start}
        cases[f"experts: {activation} from {start}"] = Case(
            experts.experts, (x, gates, *weights), mixed, options, smooth=False
        )
    return cases


EXPERTS = _mixtures()
