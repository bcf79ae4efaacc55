"""benchmarks/context.py: its rows; ranks with all keys in hand compute what a ring does."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.benchfiles import BENCHMARKS, Import
from helpers.mpijob import run as mpirun

from nnmpi.autograd.ops.attention import self_attention
from nnmpi.parallel.context.ring import ring_attention
from nnmpi.parallel.positions import Positions

SCRIPT = str(BENCHMARKS / "context.py")
TINY = ("--length", "64", "--rounds", "2")


def test_ranks_with_keys_in_hand_compute_the_output(module: Import) -> None:
    context, cut = module("context"), Positions(2, 13)
    qkv = np.random.default_rng(0).standard_normal((1, 13, 2, 3, 4))
    parts = [qkv[:, cut.of(r), :, 1:].transpose(3, 0, 2, 1, 4) for r in range(2)]
    whole = self_attention(qkv, scale=0.5, causal=True).value
    for r in range(2):
        ring = context.InHand(context.Place(r, 2), cut, parts)
        options = {"scale": 0.5, "causal": True, "keep_of": None, "ring": ring}
        part = ring_attention(qkv[:, cut.of(r)], **options).value
        np.testing.assert_allclose(part, whole[:, cut.of(r)], atol=1e-14)


def test_ranks_look_at_half_of_the_pairs(module: Import) -> None:
    rows = [*module("context").kernels(64, 2, 2)]
    assert [row["ranks"] for row in rows] == [1, 2, 2]
    assert rows[1]["pairs"] == rows[2]["pairs"] == rows[0]["pairs"] // 2
    assert all(row["seconds"] > 0 for row in rows)


@pytest.mark.parametrize("ranks", [2])
def test_a_step_on_ranks_has_a_row(ranks: int, tmp_path: Path) -> None:
    ended = mpirun(ranks, SCRIPT, *TINY, "--json", str(tmp_path / "out.json"), timeout=250)
    assert ended.status == 0, ended.err
    alone, together = json.loads((tmp_path / "out.json").read_text())
    assert (alone["ranks"], together["ranks"]) == (1, ranks)
    assert together["ratio"] > 0
