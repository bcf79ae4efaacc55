"""The parts of a step add up to its terms, for layouts of every kind."""

import pytest
from helpers.decoders import decoder
from helpers.planning import SLOW_LINKS, planning

from nnmpi.addons.planning.run.explained import (
    HIDDEN,
    as_text,
    by_part,
    parts_of_step,
    spans_of_step,
)
from nnmpi.addons.planning.step_time import step_time
from nnmpi.options.config import Config

CNN = Config(model="mnist-cnn", data="synthetic:1x28x28:10:12800", batch_size=32)
DECODER = decoder("2x2x16", 16, batch_size=8)
LAYOUTS = (
    (CNN, {}),
    (CNN, {"zero": 3, "micro_batches": 2}),
    (CNN, {"pp": 2, "schedule": "zb-h1", "micro_batches": 8}),
    (CNN, {"pp": 2, "schedule": "interleaved", "micro_batches": 4, "recompute": True}),
    (CNN, {"pp": 2, "schedule": "v-half", "micro_batches": 4}),
    (CNN, {"tp": 2}),
    (DECODER, {"tp": 2, "pp": 2, "micro_batches": 2}),
    (DECODER, {"cp": 2}),
)


@pytest.mark.parametrize(("config", "options"), LAYOUTS)
def test_the_parts_of_a_term_add_up_to_it(config: Config, options: dict[str, object]) -> None:
    there = planning(config, 4, 2, SLOW_LINKS)
    a = there.arranger.arranged_by(Config(**{**vars(config), **options}))
    step, parts = parts_of_step(a, there.costs)
    assert step.time == step_time(a, there.costs)
    for term, seconds in step.time._asdict().items():
        found = [part.seconds for part in parts if part.term == term]
        assert sum(found) == pytest.approx(seconds, abs=1e-12), term
    spans = sum(by_part(spans_of_step(a, there.costs, step)).values())
    other = step.time.packing + step.time.other
    assert spans + other == pytest.approx(step.time.seconds)


def test_what_rounds_to_nothing_has_no_sign() -> None:
    part = {"what": HIDDEN, "term": "sums", "times": 1, "seconds": -1e-7}
    event = {"layout": "--dp 2", "seconds": 1.0, "parts": [part], "traced": []}
    assert "-0.000" not in as_text(event)
