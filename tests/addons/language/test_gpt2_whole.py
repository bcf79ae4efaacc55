"""GPT-2 in its published size of 124 million parameters: built, written and read."""

from pathlib import Path

import numpy as np
import pytest
from helpers.training.laws_language import tokens

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.addons.language.models.gpt2 import GPT2, load_gpt2
from nnmpi.comm import comm_self


@pytest.mark.long
def test_the_published_size_is_saved_and_loaded(tmp_path: Path) -> None:
    """By the Trainer into a folder, and from there, alone and by another Trainer."""
    folder, ids = f"{tmp_path}/gpt2/", np.random.default_rng(0).integers(0, GPT2.vocabulary, (2, 9))
    model = nn.GPT(*GPT2[:5])
    assert sum(p.size for p in model.parameters()) == 124_439_808
    case = {"model": "gpt2", "optimizer": "sgd", "momentum": 0.0, "steps": 1, "batch_size": 1}
    with Trainer(Config(**case, save=folder), data=tokens(), comm=comm_self()) as first:
        first.save(folder)
        wanted = first.model.eval()(nnmpi.tensor(ids)).numpy()
    assert (tmp_path / "gpt2" / "model.safetensors").stat().st_size > 4 * 124_439_808
    found = load_gpt2(folder).eval()(nnmpi.tensor(ids)).numpy()
    np.testing.assert_array_equal(found, wanted)
    with Trainer(Config(**case, load=folder), data=tokens(), comm=comm_self()) as second:
        np.testing.assert_array_equal(second.model.eval()(nnmpi.tensor(ids)).numpy(), wanted)
