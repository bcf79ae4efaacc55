"""Stages, blocks and attention that run again, in any layout: the bits of that layout without."""

from collections.abc import Iterator
from functools import partial

from helpers.sample import one_in
from helpers.training.laws_language import MODELS, UNEVEN, tokens
from helpers.training.pipelined import Options, Ran, is_same, run

from nnmpi.comm import Comm

KINDS = ("stage", "block", "selective")
UNTIED = {"decoder": "rotary", "gpt": "llama"}
"""Models whose weights are tied, and those that train in their place where that is refused."""
CASE: Options = {"optimizer": "adamw", "clip_norm": 0.5, "batch_size": 9, "micro_batches": 3}


def layouts(p: int) -> Iterator[Options]:
    """All kinds of them; cut 6 divides a block, and others are between two."""
    yield from (
        {"dp": p, "zero": zero, "bucket_mb": 0.001} for zero in (0, 2, 3)[: 1 + 2 * (p > 1)]
    )
    yield {"dp": p, "reproducible": True, "micro_batches": 1}
    if p in (2, 3):
        yield from ({"tp": p, "sequence_parallel": parts} for parts in (False, True))
        yield {"cp": p}
        cut = {2: "6", 3: "6,10"}[p]
        yield from ({"pp": p, "cut": cut, "schedule": how} for how in ("gpipe", "1f1b", "zb-h1"))
        one: Options = {"clip_norm": None, "micro_batches": 1}
        yield {"pp": p, "cut": cut, "schedule": "pipedream", **one}
    if p == 2:
        yield {"pp": 2, "cut": "4,9,14", "schedule": "interleaved"}
    if p == 4:
        yield {"pp": 2, "tp": 2, "cut": "6", "sequence_parallel": True}
        yield {"dp": 2, "pp": 2, "cut": "9", "zero": 3, "schedule": "zb-h1"}
        yield {"cp": 2, "pp": 2, "cut": "9"}


def trained(comm: Comm, name: str, layout: Options, how: str) -> Ran:
    model = UNTIED[name] if layout.get("schedule") == "pipedream" else name
    positions = UNEVEN if "cp" in layout else 6
    build = partial(MODELS[model], positions)
    return run(comm, build, tokens(positions), **{**CASE, **layout, "recompute": how})


def what_runs_again_changes_no_bits(comm: Comm, name: str) -> None:
    for layout in one_in(6, layouts(comm.size), "runs again"):
        wanted = trained(comm, name, layout, "none")
        is_alone = layout.get("reproducible") or layout.get("schedule") == "pipedream"
        for how in KINDS[1:] if is_alone else KINDS:  # these run no stage again
            is_same(trained(comm, name, layout, how), wanted)


def verify_compares_it_with_one_rank_that_keeps_all(comm: Comm) -> None:
    if comm.size > 1:
        got = trained(comm, "decoder", {"dp": comm.size, "verify": True}, "block")
        assert got.done["largest_differences"]["parameters_relative"] < 1e-10
