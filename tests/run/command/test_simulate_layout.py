"""`simulate layout`: what ranks that are not there would hold and send, as text, JSON and SVG."""

import json
import shlex
from typing import Any

import pytest

from nnmpi import Config, simulate
from nnmpi.addons.planning.paper.rank import traffic
from nnmpi.addons.planning.paper.rank_kinds import rank_kinds
from nnmpi.addons.planning.run.dry_run import dry_run
from nnmpi.addons.planning.run.on_paper import on_paper
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import Event
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.run.setup.cutting import uncut_of
from nnmpi.run.setup.setup import set_up

MANY = "--ranks 1024 --nodes 128 --dp 64 --tp 4 --pp 4 --zero 1 --model mnist-cnn --data mnist"


def layout(text: str) -> str:
    options = simulate.parser().parse_args(["layout", *shlex.split(text)])
    output = options.run(options)
    return output if isinstance(output, str) else json.dumps(output)


def test_many_ranks_are_told_by_kinds() -> None:
    event = json.loads(layout(f"{MANY} --json"))
    assert (event["ranks"], event["nodes"]) == (1024, 128)
    assert sorted(r for kind in event["kinds"] for r in kind["ranks"]) == list(range(1024))
    assert {tuple(kind["stages"]) for kind in event["kinds"]} == {(0,), (1,), (2,), (3,)}
    held = {kind["parameters_bytes"] for kind in event["kinds"]}
    assert max(held) < 4 * event["parameters"]


def test_text_has_a_table_of_memory_of_messages_and_of_layers() -> None:
    text = layout(MANY)
    for words in (
        "on 1,024 ranks on 128 nodes: pp 4 x dp 64 x tp 4, ZeRO 1",
        "bytes that a rank holds",
        "bytes and messages that a rank sends in a step",
        "0 Conv2d  ###.........  ...###......  ......###...  .........###",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("nodes", "options"),
    [
        (1, {"dp": 67, "allreduce": "halving"}),
        (1, {"dp": 67, "allreduce": "hierarchical"}),
        (1, {"dp": 70, "allreduce": "tree", "data": "synthetic:1x8x8:10:300", "batch_size": 290}),
        (1, {"dp": 33, "pp": 2, "micro_batches": 3, "batch_size": 200}),
        (1, {"dp": 66, "zero": 2}),
        (5, {"dp": 33, "tp": 2, "batch_size": 140}),  # some groups along tp are on two nodes
        (7, {"dp": 18, "tp": 4, "batch_size": 140}),
    ],
    ids=str,
)
def test_all_ranks_of_a_kind_send_what_is_said(nodes: int, options: dict[str, Any]) -> None:
    config = Config(**{"model": "digits-cnn", "batch_size": 70, **options})
    ranks = config.dp * config.tp * config.pp
    a = on_paper(uncut_of(config)[1], Cluster.on_paper(ranks, nodes, "cpu"))
    kinds = rank_kinds(a, config.batch_size)
    assert sorted(r for kind in kinds for r in kind.ranks) == [*range(ranks)]
    assert len(kinds) <= 40
    for kind in kinds:
        for rank in kind.ranks:
            for axis, (nbytes, messages) in traffic(a, rank, config.batch_size).items():
                said = kind.traffic[axis]
                assert messages == said.messages, (rank, axis)
                assert nbytes == pytest.approx(said.bytes, rel=0.01), (rank, axis)


@pytest.mark.parametrize(
    "options", ["--dp 3 --allreduce ring", "--pp 3 --cut 4,8", "--tp 3", "--dp 3 --zero 2"]
)
def test_ranks_that_are_there_get_the_same_answer(options: str) -> None:
    words = options.split()
    given = {name[2:]: value for name, value in zip(words[::2], words[1::2], strict=True)}
    config = Config(**{n: int(v) if v.isdecimal() else v for n, v in given.items()})

    def rank(comm: Comm) -> Event:
        return dry_run(set_up(config, comm), comm)

    on_paper = json.loads(layout(f"--ranks 3 {options} --json"))
    for event in threads.run(3, rank):
        assert json.loads(json.dumps(event["kinds"])) == on_paper["kinds"]
        assert event["drawing"] == on_paper["drawing"]


@pytest.mark.parametrize("options", ["--servers 2", "--sync asp", "--reproducible", "--verify"])
def test_all_strategies_have_an_answer(options: str) -> None:
    event = json.loads(layout(f"--ranks 4 {options} --json"))
    assert sorted(r for kind in event["kinds"] for r in kind["ranks"]) == [0, 1, 2, 3]
    assert layout(f"--ranks 4 {options}")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--ranks 4 --backup 5", "no backups: everything that a rank has is on another rank too"),
        ("--ranks 4 --nodes 2 --zero 3 --backup 5", "for a backup on another node, every 5 steps"),
        ("--ranks 2 --pp 2 --backup", "on the only node, and lost with it, as often as --mtbf"),
    ],
)
def test_backups_are_priced_where_they_are_asked_for(options: str, words: str) -> None:
    text = layout(f"{options} --allreduce ring")
    assert words in text
    assert "backups " in text
    assert "backup" not in layout(f"{options.partition(' --backup')[0]} --allreduce ring")


def test_what_no_other_rank_has_is_in_the_event() -> None:
    """The values and Adam's two sums of the shards; with stages, also buffers."""
    zero, stages = (
        json.loads(layout(f"--allreduce ring --json {options}"))
        for options in ("--ranks 4 --zero 1", "--ranks 2 --pp 2")
    )
    alone = [
        sum(k["unreplicated_bytes"] * len(k["ranks"]) for k in e["kinds"]) for e in (zero, stages)
    ]
    assert alone[0] == pytest.approx(12 * zero["parameters"], rel=0.01)
    assert alone[1] == pytest.approx(12 * stages["parameters"], rel=0.1)
    assert alone[1] > 12 * stages["parameters"]


# ---- what moves from another layout


def test_what_moves_adds_up() -> None:
    """From more ranks to fewer: those that are left out only send."""
    text = '--ranks 3 --tp 3 --json --from "--ranks 4 --nodes 2 --pp 2 --dp 2 --zero 1"'
    event = json.loads(layout(text))
    moves = event["moves"]
    assert (moves["before_ranks"], len(moves["ranks"])) == (4, 4)
    for way in ("received", "sent"):
        assert sum(one[way]["bytes"] for one in moves["ranks"]) > 0
    for one in moves["ranks"]:
        assert one["needed_bytes"] == one["kept_bytes"] + one["received"]["bytes"]
        assert one["needed_bytes"] == sum(one["from"].values())
    assert moves["ranks"][3]["needed_bytes"] == 0 < moves["ranks"][3]["sent"]["bytes"]
    sums = 3 * 4 * event["parameters"]  # values, and two sums of Adam, where each is cut in three
    assert sums <= sum(one["needed_bytes"] for one in moves["ranks"]) < 1.2 * sums
