"""The laws of what models from elsewhere use, on ranks that are threads."""

from functools import partial

import pytest
from helpers.training import laws_ported
from helpers.training.laws_ported import LAYOUTS, MODELS
from helpers.training.pipelined import Options

from nnmpi.comm import thread_ranks as threads


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_models_train_as_on_one_rank(name: str, layout: Options) -> None:
    threads.run(2, partial(laws_ported.model_trains_as_on_one_rank, name, layout))


def test_a_hook_runs_where_its_module_does() -> None:
    threads.run(2, laws_ported.a_hook_runs_where_its_module_does)
