"""What a walk over the list of a rank says that it sends, beside what the ranks of a run send."""

import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.training.laws_language import MODELS, POSITIONS, many_tokens
from helpers.training.on_paper import PLAIN
from helpers.training.pipelined import digits

from nnmpi import Config, Trainer
from nnmpi.addons.planning.paper.rank import traffic
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import NullReport

MODELS_OF: dict[str, dict[str, Any]] = {
    "mlp": {"model": "mlp:64-48-40-32-24-10"},
    "tied": {"build": partial(MODELS["gpt"], POSITIONS), "given": many_tokens},
    "encoder": {"build": partial(MODELS["encoder"], POSITIONS), "given": many_tokens},
    "cnn": {"model": "digits-cnn"},
}
LAYOUTS = tomllib.loads(Path(__file__).with_name("walked_layouts.toml").read_text(encoding="utf-8"))


def sends_what_is_said(comm: Comm, options: dict[str, Any]) -> None:
    others = {name: value for name, value in options.items() if name not in ("build", "given")}
    config, given = Config(**PLAIN | {"steps": 3} | others), options.get("given", digits)()
    with Trainer(config, options.get("build"), given, comm) as trainer:
        trainer.fit(NullReport())
        a = trainer.arrangement
        if comm.rank < a.mesh.size:  # servers compute no stage
            said = traffic(a, comm.rank, config.batch_size)
            assert trainer.strategy.traffic.sent == said


@pytest.mark.parametrize("name", LAYOUTS)
def test_ranks_send_what_their_lists_say(name: str) -> None:
    row = dict(LAYOUTS[name])
    ranks, model = row.pop("ranks"), MODELS_OF[row.pop("of")]
    threads.run(ranks, sends_what_is_said, model | row)
