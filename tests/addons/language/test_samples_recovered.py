"""Ranks are killed while a text is sampled."""

from pathlib import Path
from typing import Any

import pytest
from helpers.training import recovered
from helpers.training.acts import kill_soon
from helpers.training.recovered import RING, Left

from nnmpi.addons.language.run.samples import Sampler
from nnmpi.run.session import Session

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
    monkeypatch.setattr("nnmpi.addons.language.run.samples.TOKENS", 6)
    wanted = recovered.run_of(ranks, options, {})[0]
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
