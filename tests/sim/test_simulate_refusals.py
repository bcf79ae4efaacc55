"""What nnmpi.simulate refuses: each is one line, which says what to write instead."""

import re
import shlex

import pytest

from nnmpi import simulate

RING = "--algorithm ring --ranks 4 --bytes 1MB"
FOUR = "--ranks 4 --bytes 1MB"
SIZE = "--rows 4096 --inner 4096 --columns 4096"
GOODPUT = "--mttf-node 30000h --checkpoint 60s --restart 300s --ranks 16384"
STAGES = "--stages 4 --micro-batches 8"
NOT_DRAWN = "p2p-whole can be priced but not drawn"

Rows = dict[str, tuple[str, ...]]
COLLECTIVE: Rows = {
    "no ranks": ("--bytes 1", "required", "--ranks"),
    "0 ranks": ("--ranks 0 --bytes 1", "ranks 0", "from 1 to 10000000"),
    "too many ranks": (f"--ranks {10**30} --bytes 1", "ranks 1000", "to 10000000"),
    "bytes below 0": ("--ranks 4 --bytes=-1", "--bytes", "'-1' is not a size"),
    "alpha": (f"{RING} --alpha=-5e-6", "alpha -5e-06", "from 0"),
    "alpha in words": (f"{RING} --alpha slow", "--alpha", "'slow'"),
    "algorithm": (f"{FOUR} --algorithm rng", "p2p-whole"),
    "algorithm of several": (f"{FOUR} --algorithm ring,rong", "algorithm 'rong' of all-reduce"),
    "of another operation": (f"{RING} --operation reduce", "'ring' of reduce", "tree, ps"),
    "shared": (f"{FOUR} --algorithm shared", "hierarchical --per-node Q"),
    "half a network": (f"{RING} --inner-beta 1e-11", "inner-alpha", "give --per-node"),
    "a torus of nodes": (f"{RING} --network torus:2x2 --per-node 2", "leave out --per-node"),
    "a torus inside": (f"{RING} --network torus:4 --inner-beta 1", "leave out --inner-alpha"),
    "too small a torus": (f"{RING} --network torus:3", "torus:3 has 3 ranks, not 4"),
    "no topology": (f"{RING} --network hypercube:2", "'hypercube:2' is none of fat-tree:K"),
    "empty nodes": (f"{RING} --per-node 0 --inner-alpha 0 --inner-beta 0", "from 1"),
    "a drawing too wide": (
        f"{RING} --ranks 17 --draw",
        "1 to 16 ranks, got 17",
        "leave out --draw",
    ),
    "a picture of all": (f"{FOUR} --svg x.svg", NOT_DRAWN, "name others with --algorithm"),
    "a picture of a sweep": (f"{RING} --svg x.svg --sweep bytes", "leave it or --sweep out"),
    "a drawing of a sweep": (f"{RING} --draw --sweep bytes", "leave it or --sweep out"),
    "a drawing in JSON": (f"{RING} --draw --json", "--draw", "--json", "leave out one"),
    "a drawing of what does not work": (
        *(f"{FOUR} --algorithm p2p-whole --draw", NOT_DRAWN),
        *("round 2", "twice", "leave out --draw"),
    ),
    "a misspelt flag": (f"{RING} --swep=bytes", "--swep=bytes; did you mean --sweep?"),
    "a sweep of one rank": ("--ranks 1 --bytes 1 --sweep ranks", "--ranks from 2 to 4096, got 1"),
    "a long sweep": ("--ranks 9999 --bytes 1 --sweep ranks", "--ranks from 2 to 4096, got 9999"),
    "a plot of no sweep": (f"{FOUR} --plot x.png", "add --sweep bytes or --sweep ranks"),
}
GEMM: Rows = {
    "no rows": ("--inner 4 --columns 4 --ranks 2", "required", "--rows"),
    "0 rows": ("--rows 0 --inner 4 --columns 4 --ranks 2", "rows 0", "from 1 to 1000000000"),
    "0 ranks": (f"{SIZE} --ranks 0", "ranks 0", "from 1 to 1024"),
    "more ranks than columns": ("--rows 4 --inner 4 --columns 3 --ranks 4", "4 ranks"),
    "grid": (f"{SIZE} --ranks 6 --grid 2x2", "grid 2x2 has 4 ranks, not 6", "product"),
    "grid of three": (f"{SIZE} --ranks 8 --grid 2x2x2", "'2x2x2'", "as in 2x3"),
    "panel": (f"{SIZE} --ranks 4 --panel 0", "panel 0", "from 1"),
    "bytes": (f"{SIZE} --ranks 4 --dtype-bytes 32", "dtype-bytes 32", "to 16"),
    "flops": (f"{SIZE} --ranks 4 --flops 0", "flops 0.0", "from 1 to 1e+30"),
    "half a network": (f"{SIZE} --ranks 4 --inner-alpha 1e-6", "inner-alpha", "give --per-node"),
}
OF_GOODPUT: Rows = {
    "no ranks": ("--mttf-node 1h --checkpoint 1s --restart 1s", "required", "--ranks"),
    "0 ranks": (f"{GOODPUT} --ranks 0", "ranks 0", "from 1"),
    "large nodes": (f"{GOODPUT} --ranks 4 --ranks-per-node 8", "ranks-per-node 8", "to 4"),
    "a small node": (f"{GOODPUT} --ranks 10", "--ranks 10", "nodes of 8", "--ranks-per-node"),
    "copies on one node": (f"{GOODPUT} --ranks 8 --backup", "second node", "8 ranks"),
    "old copies": (f"{GOODPUT} --every 10m --backup 2h", "--backup 7200 s", "--every 600 s"),
    "no copies to recover from": (f"{GOODPUT} --recover 30s", "--recover", "--backup"),
    "no spares to wait for": (f"{GOODPUT} --repair 1h", "--repair", "--spares"),
    "no time": (f"{GOODPUT} --checkpoint 0", "--checkpoint", "duration above 0", "1.5h"),
    "spares": (f"{GOODPUT} --spares -1", "--spares -1", "0 to 10000"),
}
PIPELINE: Rows = {
    "neither": (STAGES, "--schedule and --compare"),
    "unknown": (f"{STAGES} --schedule 2f2b", "'2f2b'", "zb-h1"),
    "unknown of several": (f"{STAGES} --compare gpipe,2f2b", "'2f2b'", "zb-h1"),
    "no micro-batches": ("--schedule 1f1b --stages 2", "required", "--micro-batches"),
    "0 stages": ("--compare --stages 0 --micro-batches 2", "stages, got 0"),
    "0 virtual": (f"--compare {STAGES} --virtual-stages 0", "virtual stages, got 0"),
    "too many": ("--compare --stages 300 --micro-batches 334", "100200", "more than 100000"),
    "too many ranks": ("--schedule 1f1b --stages 10000 --micro-batches 10", "100000000"),
    "virtual": (f"--schedule gpipe {STAGES} --virtual-stages 2", "got 2 virtual", "interleaved"),
    "forward": (f"--compare {STAGES} --forward=-1", "forward -1.0", "from 1e-30"),
    "send": (f"--compare {STAGES} --send inf", "send inf", "to 1e+30"),
    "tiny": (f"--compare {STAGES} --forward 1e-320 --backward 0", "forward 1e-320", "1e-30"),
    "no time": (f"--compare {STAGES} --forward 0 --backward 0", "both 0"),
}
SYNC: Rows = {
    "neither": ("", "give --workers P to see how long workers wait, or --parameters N"),
    "both": ("--workers 4 --parameters 1e9", "one of them"),
    "no workers": ("--workers 0", "--workers 0 and --steps 12 must be at least 1"),
    "too many steps": ("--workers 4 --steps 1000000", "their product at most 100,000"),
    "staleness below 0": ("--workers 4 --staleness -1", "--staleness -1 must be at least 0"),
    "staleness of bsp": (
        "--workers 4 --sync bsp --staleness 2",
        "--staleness 2 is for --sync ssp; --sync bsp has",
    ),
    "slow rank": ("--workers 4 --slow-rank 4:2", "the ranks that compute are 0 to 3"),
    "jitter": ("--workers 4 --jitter 2:2", "a share of the steps is between 0 and 1"),
    "mode": ("--workers 4 --sync tsp", "invalid choice: 'tsp'"),
    "mode of replicas": ("--workers 4 --sync local", "with --workers: take bsp or ssp or asp"),
    "rounds of workers": (
        "--workers 4 --every 3",
        "--every says nothing about --workers: leave it",
    ),
    "jitter of replicas": (
        "--parameters 1e9 --jitter 0.1:5",
        "--jitter says nothing about --parameters: leave it",
    ),
    "no parameters": ("--parameters 0", "parameters 0.0 must be a number from 1"),
    "few parameters": (
        "--parameters 1 --compress topk:0.1",
        "1 in 24 layers: a layer has at least one; give few",
    ),
    "fragments": (
        "--parameters 1e9 --fragments 25",
        "--fragments 25 must be from 1 to 24, the layers",
    ),
    "applied too late": (
        "--parameters 1e9 --every 3 --apply-after 4",
        "--apply-after 4 must be from 0 to --every",
    ),
    "a wide picture": (
        "--parameters 1e9 --replicas 33 --sync gossip --svg x.svg",
        "room for 32 replicas, got",
    ),
}
REFUSED = {
    f"{kind}: {name}": (f"{kind} {text}", words)
    for kind, rows in (
        *(("collective", COLLECTIVE), ("gemm", GEMM), ("goodput", OF_GOODPUT)),
        *(("pipeline", PIPELINE), ("sync", SYNC)),
    )
    for name, (text, *words) in rows.items()
}


@pytest.mark.parametrize(("text", "words"), REFUSED.values(), ids=REFUSED)
def test_unusable_arguments_give_one_line(
    text: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: object = simulate.main(shlex.split(text))
    except SystemExit as exit:
        status = exit.code
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert re.fullmatch(r"nnmpi\.simulate: .*\n", err)
    assert [word for word in words if word not in err] == [], err


@pytest.mark.parametrize("arguments", [(), ("pipelines",)])
def test_the_kind_of_plan_is_required(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate.main(arguments) == 2
    assert re.fullmatch(r"nnmpi\.simulate: .*KIND.*\n", capsys.readouterr().err)
