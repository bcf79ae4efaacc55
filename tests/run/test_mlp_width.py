"""The width within an MLP, at the end of the name of a gpt or a llama."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.training.laws_language import tokens

from nnmpi import Config, Trainer, nn
from nnmpi.comm import comm_self
from nnmpi.nn.gpt2 import load_gpt2
from nnmpi.nn.language import format_of, sizes_named
from nnmpi.run.text.saved import saved_sizes


@pytest.mark.parametrize(
    ("name", "vocabulary", "parameters"),
    [
        ("llama:126x128x16384:8:53248", 128_256, 405_853_388_800),
        ("llama:32x32x4096:8:14336", 128_256, 8_030_261_248),
        ("llama:32x32x4096:32:11008", 32_000, 6_738_415_616),
        ("gpt:12x12x768:3072", 50_257, 124_439_808),
    ],
)
def test_parameters_are_those_of_published_models(
    name: str, vocabulary: int, parameters: int
) -> None:
    """Llama 3.1 405B and 8B, Llama 2 7B and GPT-2; no value is drawn."""
    sizes = sizes_named(name)
    model = format_of(sizes._replace(vocabulary=vocabulary, positions=1024)).model()
    assert sum(p.size for p in model.parameters()) == parameters


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("gpt:2x4x16:64", "gpt:2x4x16"),
        ("gpt:2x4x16:65", "gpt:2x4x16:65"),
        ("llama:2x4x16:2:64", "llama:2x4x16:2"),
        ("llama:2x4x16:4:64", "llama:2x4x16"),
        ("llama:2x4x16:4:65", "llama:2x4x16:4:65"),
    ],
)
def test_a_name_says_a_width_that_is_not_the_usual_one(given: str, name: str) -> None:
    sizes = sizes_named(given)
    assert sizes.model == name
    assert sizes_named(name).checked() == sizes.checked()


def test_files_and_folders_of_a_gpt_have_the_width(tmp_path: Path) -> None:
    made = Trainer(Config(model="gpt:2x2x8:20"), data=tokens(), comm=comm_self())
    assert made.model.h[0].mlp.c_fc.weight.shape == (20, 8)
    file, folder = tmp_path / "m.safetensors", tmp_path / "folder"
    made.save(str(file))
    made.save(f"{folder}/")
    assert saved_sizes(str(file)) == saved_sizes(str(folder)) == made.model.sizes
    assert json.loads((folder / "config.json").read_text())["n_inner"] == 20
    for name, value in load_gpt2(folder).state_dict().items():
        np.testing.assert_array_equal(value, made.model.state_dict()[name], err_msg=name)
    again = Trainer(Config(load=str(folder)), data=tokens(), comm=comm_self())
    assert again.config.model == "gpt:2x2x8:20"


def test_a_model_says_that_a_width_is_too_small() -> None:
    with pytest.raises(ValueError, match=r"width 8, -1 within an MLP: all must be at least 1"):
        nn.GPT(1, 2, 8, 11, 6, intermediate=-1)
