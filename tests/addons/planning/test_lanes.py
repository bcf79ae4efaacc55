"""Steps on lanes: every operation has its time, beside the price of the step."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from helpers.decoders import decoder
from helpers.planning import SLOW_LINKS, Planning, planning

from nnmpi import simulate
from nnmpi.addons.planning import lanes
from nnmpi.addons.planning.candidate import Candidate
from nnmpi.addons.planning.paper.activations import activations, needed
from nnmpi.addons.planning.step_time import step_time
from nnmpi.addons.simulator.drawing.timeline import Timeline
from nnmpi.parallel.step_list.step import step_list
from nnmpi.schedules.op import PASSES

DECODER = decoder("4x4x32", 32, batch_size=64, bucket_mb=0.02)
PIPELINES = [
    Candidate(pp=2, dp=2, micro_batches=4),
    Candidate(pp=2, dp=2, micro_batches=4, schedule="interleaved"),
    Candidate(pp=2, dp=2, micro_batches=4, schedule="zb-h1"),
    Candidate(pp=2, dp=2, micro_batches=4, schedule="zb-v"),
    Candidate(pp=2, dp=2, micro_batches=4, recompute="stage"),
    Candidate(pp=2, tp=2, micro_batches=2),
    Candidate(dp=4, micro_batches=2),
    Candidate(tp=4),
]


def there(nodes: int) -> Planning:
    return planning(DECODER, 4, nodes, SLOW_LINKS)


@pytest.mark.parametrize("zero", range(4))
@pytest.mark.parametrize("layout", PIPELINES)
def test_all_passes_are_drawn_and_no_two_are_at_once(layout: Candidate, zero: int) -> None:
    for nodes in (1, 4):
        models = there(nodes)
        a = models.arranger.arranged(layout._replace(zero=zero))
        for rank, drawn in zip(
            a.mesh.group(3, "pp"), lanes.timelines(a, models.costs), strict=True
        ):
            kinds = {kind.value for kind in PASSES}
            ops = step_list(a, rank, layout.micro_batches).ops
            passes = Counter((op.kind.value, op.micro) for op in ops if op.kind in PASSES)
            spans = Counter((s.kind, s.micro) for s in drawn.spans if s.kind in kinds)
            # units of a layer that takes no time, such as an embedding, are not drawn
            assert spans.keys() == passes.keys()
            assert all(spans[at] <= passes[at] for at in spans)
            for row in (lanes.RANK, lanes.BESIDE):
                in_row = sorted((s.start, s.end) for s in drawn.spans if s.rank == row)
                assert all(two[0] >= one[1] - 1e-9 for one, two in pairwise(in_row))


def test_the_last_span_of_one_stage_ends_where_its_price_says() -> None:
    for nodes in (1, 4):
        for micro in (1, 3):
            models = there(nodes)
            a = models.arranger.arranged(Candidate(dp=4, micro_batches=micro))
            (drawn,) = lanes.timelines(a, models.costs)
            time = step_time(a, models.costs)
            assert 1e-3 * drawn.end == pytest.approx(time.seconds - time.other - time.packing)


def peak(drawn: Timeline) -> float:
    return max(level.value for level in drawn.levels[lanes.MEMORY])


@pytest.mark.parametrize("layout", PIPELINES)
def test_levels_are_those_of_the_prediction(layout: Candidate) -> None:
    """What is kept, with the samples of the batch and copies of inputs that are read again."""
    models = there(1)
    a = models.arranger.arranged(layout)
    for rank, drawn in zip(a.mesh.group(3, "pp"), lanes.timelines(a, models.costs), strict=True):
        levels = drawn.levels[lanes.MEMORY]
        assert all(one.end == pytest.approx(two.start) for one, two in pairwise(levels))
        assert activations(a, rank, 64) <= peak(drawn) <= needed(a, rank, 64)


def test_too_many_operations_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "MOST_OPERATIONS", 100)
    models = there(1)
    a = models.arranger.arranged(PIPELINES[0])
    with pytest.raises(ValueError, match=r"draws at most 100 operations, and this step has .*give"):
        lanes.timelines(a, models.costs)


def test_the_command_draws_the_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "layout --ranks 4 --nodes 2 --pp 2 --zero 2 --micro-batches 2 --batch-size 16"
    model = "--model gpt:2x2x32 --vocabulary 100 --context 16 --bucket-mb 0.05"
    picture = tmp_path / "step.svg"
    command = [*options.split(), *model.split(), "--list", "--svg", str(picture)]
    assert simulate.main(command) == 0
    assert "proved:" in capsys.readouterr().out
    drawn = picture.read_text()
    for word in ("rank 1", "rank 3", "sum of gradients", "gather of values", "send", "activations"):
        assert f">{word}" in drawn
    assert simulate.main([*command, "--machine", "a100-80g:2"]) == 0
    assert "predicted (" in picture.read_text() != drawn
