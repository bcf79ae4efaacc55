"""Ranks are killed while a text is sampled or the model is saved, hosts whole, and workers that
have a pace of their own."""

from pathlib import Path
from typing import Any

import pytest
from helpers.training import recovered
from helpers.training.acts import KillsAt, kill_soon
from helpers.training.pipelined import BOUND, distance
from helpers.training.recovered import COMMON, RING, Left

import nnmpi
from nnmpi.run.session import Session
from nnmpi.run.text.samples import Sampler

DP_TP = (4, {**RING, "dp": 2, "tp": 2})
ZERO_3 = (3, {**RING, "zero": 3, "bucket_mb": 0.001, "backup": 1})
LAYOUTS = [pytest.param(*DP_TP, 8, id="dp x tp"), pytest.param(*ZERO_3, 1, id="zero 3")]


def samples_of(left: Left) -> list[tuple[int, str]]:
    return [(one["step"], one["text"]) for one in left.events if one["event"] == "sample"]


@pytest.mark.parametrize(("ranks", "layout", "later"), LAYOUTS)
def test_a_text_in_which_a_rank_is_lost_is_told_once(
    ranks: int, layout: dict[str, Any], later: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text").write_text("the lazy dog, and\nback again. " * 30)
    gpt = {"model": "gpt:2x2x8", "context": 12, "batch_size": 8, "steps": 3, "dtype": "float64"}
    sampled = {"data": f"text:{tmp_path / 'text'}", "sample_every": 1, "given": lambda: None}
    options = {**gpt, **sampled, **layout}
    monkeypatch.setattr("nnmpi.run.text.samples.TOKENS", 6)
    wanted = recovered.run_of(ranks, options, {})[0]
    assert wanted is not None
    text = Sampler.text

    def dies_in(sampler: Sampler, session: Session) -> str:
        if session.run.state.step == 2:
            kill_soon(session.comm, 1, later)
        return text(sampler, session)

    monkeypatch.setattr(Sampler, "text", dies_in)
    left = recovered.run_of(ranks, options, {})
    recovered.check(left, wanted)
    for one in (one for one in left if one is not None and not one.is_spare):
        assert samples_of(one) == samples_of(wanted)
        assert [event["lost"] for event in one.recovered] == [[1]]


@pytest.mark.parametrize(("victim", "later"), [(0, 0), (0, 4), (1, 2), (3, 1)])
def test_a_model_is_saved_whole_though_a_rank_is_lost_meanwhile(
    victim: int, later: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the first rank is lost, the next one writes."""
    ranks, layout = DP_TP
    path = tmp_path / "m"
    wanted = recovered.whole("tensor parallel")[0]
    assert wanted.state is not None
    write = Session.write

    def dies_in(session: Session, path: str | None) -> None:
        kill_soon(session.comm, victim, later)
        write(session, path)

    monkeypatch.setattr(Session, "write", dies_in)
    left = recovered.run_of(ranks, {**COMMON, **layout, "save": str(path)}, {})
    recovered.check(left, wanted)
    assert left[victim] is None
    assert [*tmp_path.iterdir()] == [path]
    assert distance(nnmpi.load(path), wanted.state) < 100 * BOUND


@pytest.mark.one_in(2)
@pytest.mark.parametrize("host", [0, 1])
@pytest.mark.parametrize(
    "layout",
    [{"allreduce": "shared"}, {**RING, "zero": 1, "backup": 1}],
    ids=["memory of nodes", "zero 1, backups"],
)
def test_all_ranks_of_a_host_are_killed_at_once(layout: dict[str, Any], host: int) -> None:
    """What a host alone had is on another one."""
    options = {**COMMON, **layout}
    wanted = recovered.run_of(4, options, {}, per_node=2)[0]
    assert wanted is not None
    dies = [KillsAt(rank, 3, later=7) for rank in (2 * host, 2 * host + 1)]
    left = recovered.run_of(4, {**options, "callbacks": dies}, {}, per_node=2)
    recovered.check(left, wanted)
    for one in filter(None, left):
        assert one.recovered[-1]["lost"] == [2 * host, 2 * host + 1]


@pytest.mark.parametrize("sync", ["asp", "ssp"])
def test_the_other_workers_begin_the_epoch_again(sync: str) -> None:
    """With the values that it had begun with; positions of workers in it are dropped, said so."""
    served = {"servers": 1, "sync": sync, "staleness": int(sync == "ssp")}
    options = {**COMMON, **served, "clip_norm": None, "steps": None, "epochs": 4}
    wanted = recovered.run_of(2, options, {})[0]
    left, lost, server = recovered.run_of(3, {**options, "callbacks": [KillsAt(1, 1)]}, {})
    assert wanted is not None
    assert left is not None
    assert server is not None
    assert lost is None
    event = left.recovered[0]
    assert event["layout"].endswith(
        "workers begin at new positions in the data, since their number has changed"
    )
    begun = event["step"] // 5  # of five steps each
    assert left.told.epochs == server.told.epochs
    assert [one[:2] for one in left.told.epochs] == [(1, 5), (2, 10), (3, 15), (4, 20)]
    if begun == 0:  # from then on there is one worker, which no other one disturbs
        assert left.told.epochs == wanted.told.epochs
    assert event["step"] == 5 * begun
