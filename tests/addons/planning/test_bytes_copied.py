"""Bytes that array functions touch to pack and average, beside calls of these functions."""

from typing import Any

import pytest
from helpers.training.on_paper import arranged

from nnmpi.addons.averaging import gossip, means, rounds
from nnmpi.addons.compression import store
from nnmpi.addons.compression.on_paper import NotingWire
from nnmpi.addons.planning.paper.built import built
from nnmpi.addons.planning.paper.rank import step
from nnmpi.arrays.meta.log import logged_calls, touched_bytes
from nnmpi.arrays.native.table import Kernel
from nnmpi.parallel.arrangement.cluster import Cluster

LATE = {"sync": "local", "every": 4, "fragments": 2, "apply_after": 1}
WAYS: dict[str, dict[str, Any]] = {
    "local": {"sync": "local", "every": 2},
    "fragments": {"sync": "local", "every": 3, "fragments": 2, "outer": "sgd"},
    "float32": {"sync": "local", "every": 3, "outer_dtype": "float32"},
    "late": LATE,
    "late in int8": {**LATE, "outer_dtype": "int8"},
    "late in bfloat16": {**LATE, "outer_dtype": "bfloat16", "outer_momentum": 0.0},
    "gossip": {"sync": "gossip", "every": 3, "graph": "complete"},
}


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("name", WAYS)
def test_a_round_touches_what_is_said(
    name: str, ranks: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = arranged(Cluster.on_paper(ranks), model="mlp:64-20-10", dtype=dtype, **WAYS[name])
    sync, every, made = a.config.sync, a.config.every, list[Any]()
    plain = rounds.AVERAGING[sync]
    monkeypatch.setitem(rounds.AVERAGING, sync, lambda *given: made.append(plain(*given)))
    for module in (gossip, means):
        wire = NotingWire(a, a.mesh.group(0, "dp"), 0)
        monkeypatch.setattr(module, "wire_of", lambda comm, on, wire=wire: wire)
    built(a, 0)
    with logged_calls() as calls:
        made[0].begin()
        for number in range(1, every + 1):
            made[0].after_step(number)
        made[0].meet()
    touched = touched_bytes(call for call in calls if not isinstance(call.function, Kernel))
    assert step(a, 0, 24).bytes_copied == pytest.approx(touched / every)


@pytest.mark.parametrize("compress", ["topk:0.1", "sign", "powersgd:2", "int8"])
def test_a_step_touches_what_is_said_of_compressed_sums(
    compress: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Residuals and factors are copied from the optimizer's state, and back."""
    a = arranged(Cluster.on_paper(3), model="mlp:64-20-10", compress=compress)
    wire = NotingWire(a, (0, 1, 2), 0)
    monkeypatch.setattr(store, "wire_of", lambda comm, on: wire)
    sums = built(a, 0).store
    monkeypatch.setattr(sums.buckets, "all", [b._replace(comm=wire) for b in sums.buckets.all])
    with logged_calls() as calls:
        for b in range(len(sums.buckets.all)):
            if transfer := sums.start(b):
                transfer.wait()
        sums.keep_residuals()
    touched = touched_bytes(call for call in calls if not isinstance(call.function, Kernel))
    assert step(a, 0, 24).bytes_copied == pytest.approx(touched)


@pytest.mark.parametrize("compress", ["topk:0.1", "powersgd:2"])
def test_an_update_is_no_packing(compress: str) -> None:
    """Of LAMB, which updates by array functions, as of SGD, which has a kernel."""
    sgd, lamb = (
        step(arranged(Cluster.on_paper(2), compress=compress, optimizer=name), 0, 24).bytes_copied
        for name in ("sgd", "lamb")
    )
    assert sgd == lamb > 0
