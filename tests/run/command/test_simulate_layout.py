"""`simulate layout`: what ranks that are not there would hold and send, as text, JSON and SVG."""

import json
import re
import shlex
import tracemalloc
import xml.etree.ElementTree as ET
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from helpers.datafiles import refused

from nnmpi import Config, simulate, train
from nnmpi.backend import CPU
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.mesh import Mesh
from nnmpi.nn.tracing import trace
from nnmpi.run.dry_run import MOST_RANKS, dry_run
from nnmpi.run.report import Event
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


def test_what_needs_numbers_and_does_not_fit_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("nnmpi.run.setup.objectives.trace", partial(trace, on=CPU))
    monkeypatch.setattr("nnmpi.nn.tracing.memory_available", lambda: 1000)
    assert simulate.main(["layout", *MANY.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "0.0 GB are free; take fewer ranks, a smaller model" in line


@pytest.mark.parametrize(
    ("options", "megabytes"),
    [
        ("--model gpt:3x96x12288 --data text --context 2048 --tp 8 --nodes 8", 20),
        ("--data synthetic:1x8x8:10:400000000 --batch-size 100000", 5),
    ],
    ids=["blocks of GPT-3", "400 million samples"],
)
def test_paper_takes_no_memory(options: str, megabytes: int) -> None:
    """Neither for 22 GB of parameters, nor for 120 GB of samples."""
    layout("--ranks 64")  # imports and caches
    tracemalloc.start()
    layout(f"--ranks 64 {options}")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < megabytes * 1e6


def test_many_ranks_are_not_asked_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()

    def coordinates(self: Mesh, rank: int) -> dict[str, int]:
        asked["coordinates"] += 1
        return plain(self, rank)

    plain = Mesh.coordinates
    monkeypatch.setattr(Mesh, "coordinates", coordinates)
    event = json.loads(layout("--ranks 100000 --nodes 1000 --batch-size 100000 --json"))
    assert [len(kind["ranks"]) for kind in event["kinds"]] == [1000, 99_000]
    assert asked["coordinates"] < 1000


@pytest.mark.parametrize(("zero", "times"), [(0, 0), (1, 1), (2, 1)])
def test_parameters_that_zero_gathers_are_told_apart(zero: int, times: int) -> None:
    """A ring sends (p - 1)/p of them."""
    event = json.loads(layout(f"--ranks 3 --nodes 3 --zero {zero} --bucket-mb 0.01 --json"))
    for kind in event["kinds"]:
        sent = kind["parameters_sent"]["bytes"]
        assert sent == pytest.approx(times * 2 / 3 * 4 * event["parameters"], rel=0.05)
        assert sent <= kind["sent"]["dp"]["bytes"]


def test_a_picture_has_a_bar_for_each_part(tmp_path: Path) -> None:
    file = tmp_path / "layout.svg"
    layout(f"{MANY} --svg {file}")
    texts = [e.text for e in ET.parse(file).iter() if e.tag.endswith("text")]
    assert "stage 3: ranks 768-1023" in texts
    assert texts.count("tp 3") == 4


def test_a_picture_of_moves_has_both_layouts(tmp_path: Path) -> None:
    file = tmp_path / "layout.svg"
    layout(f"--ranks 2 --tp 2 --from '--ranks 4 --pp 4' --svg {file}")
    texts = [e.text for e in ET.parse(file).iter() if e.tag.endswith("text")]
    titles = [text for text in texts if text and "digits-cnn" in text]
    assert titles == ["digits-cnn on 4 ranks, before", "digits-cnn on 2 ranks"]
    assert [text for text in texts if "stage" in str(text)][-2:] == [
        "stage 3: rank 3",
        "stage 0: ranks 0, 1",
    ]


@pytest.mark.parametrize(
    "options", ["--dp 3 --allreduce ring", "--pp 3 --cut 4,8", "--tp 3", "--dp 3 --zero 2"]
)
def test_ranks_that_are_there_get_the_same_answer(options: str) -> None:
    words = options.split()
    given = {name[2:]: value for name, value in zip(words[::2], words[1::2], strict=True)}
    config = Config(**{n: int(v) if v.isdecimal() else v for n, v in given.items()})

    def rank(comm: Comm) -> Event:
        return dry_run(set_up(config, None, None, comm), comm)

    on_paper = json.loads(layout(f"--ranks 3 {options} --json"))
    for event in threads.run(3, rank):
        assert json.loads(json.dumps(event["kinds"])) == on_paper["kinds"]
        assert event["drawing"] == on_paper["drawing"]


def test_a_dry_run_makes_no_samples(capsys: pytest.CaptureFixture[str]) -> None:
    data = "--data synthetic:784:10:1000000000"
    assert train.main(f"--dry-run --ranks 4 --model mlp:784-8-10 {data}".split()) == 0
    assert "200,000,000 test samples, 3,772,800.0 MB;" in capsys.readouterr().out


@pytest.mark.parametrize("options", ["--servers 2", "--sync asp", "--reproducible", "--verify"])
def test_all_strategies_have_an_answer(options: str) -> None:
    event = json.loads(layout(f"--ranks 4 {options} --json"))
    assert sorted(r for kind in event["kinds"] for r in kind["ranks"]) == [0, 1, 2, 3]
    assert layout(f"--ranks 4 {options}")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--ranks 0", ("ranks 0 must be from 1",)),
        (f"--ranks {MOST_RANKS + 1}", ("must be from 1 to 1,048,576",)),
        ("--ranks 3 --nodes 5", ("nodes 5 must be from 1 to 3",)),
        ("--ranks 100 --dp 7", ("dp 7 does not fit 100 ranks",)),
        ("--ranks 2 --device cuda --allreduce shared", ("device cuda with allreduce shared",)),
        ("--ranks 2 --data none.npz", ("none.npz is not a file",)),
        ("--ranks 2 --model nothing", ("nothing",)),
    ],
    ids=str,
)
def test_what_cannot_be_is_one_line(options: str, words: tuple[str, ...]) -> None:
    with refused(*words):
        layout(options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--ranks 4 --backup 5", "no backups: whatever a rank has, another one has too"),
        ("--ranks 4 --nodes 2 --zero 3 --backup 5", "for a backup on another node, every 5 steps"),
        ("--ranks 2 --pp 2 --backup", "on the one node: lost if it is, as often as --mtbf"),
    ],
)
def test_backups_are_priced_where_they_are_asked_for(options: str, words: str) -> None:
    text = layout(f"{options} --allreduce ring")
    assert words in text
    assert "backups " in text
    assert "backup" not in layout(f"{options.partition(' --backup')[0]} --allreduce ring")


def test_what_no_other_rank_has_is_in_the_event() -> None:
    """Adam's two sums of the shards; with stages, also values and buffers."""
    zero, stages = (
        json.loads(layout(f"--allreduce ring --json {options}"))
        for options in ("--ranks 4 --zero 1", "--ranks 2 --pp 2")
    )
    alone = [sum(k["sole_bytes"] * len(k["ranks"]) for k in e["kinds"]) for e in (zero, stages)]
    assert alone[0] == pytest.approx(8 * zero["parameters"], rel=0.01)
    assert alone[1] == pytest.approx(12 * stages["parameters"], rel=0.1)
    assert alone[1] > 12 * stages["parameters"]


# ---- what moves from another layout


def test_what_moves_is_what_the_page_shows() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "dry-run.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"simulate layout ([^`]*--from[^`]*)```", page)
    command, wanted = block.replace("\\\n", "").split("\n...\n")
    assert layout(command).endswith(wanted.rstrip("\n"))


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


def test_a_layout_before_that_cannot_be_is_refused() -> None:
    for before, words in (
        ("--ranks 4 --dp 3", "dp 3 does not fit"),
        ("--ranks 4 --lr 1", "unrecognized arguments: --lr 1"),
        ("--dp 3", "--ranks"),
        ("--ranks 0", "ranks 0 must be from 1"),
        ("--ranks 300", "--from is for at most 256 ranks"),
    ):
        with refused(words):
            layout(f'--ranks 4 --from "{before}"')
