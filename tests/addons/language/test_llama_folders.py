"""llama as a model by name, widths within an MLP, and --load, --save and checkpoints of folders;
laws_gpt2.py has the layouts."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.training import laws_gpt2 as laws
from helpers.training.laws_language import POSITIONS, VOCABULARY, tokens
from safetensors.numpy import load_file

from nnmpi import Config, Trainer, nn
from nnmpi.addons.language.models.folders import format_of, sizes_named
from nnmpi.addons.language.models.gpt2 import load_gpt2, save_gpt2
from nnmpi.addons.language.models.llama import LlamaSizes
from nnmpi.addons.language.models.llama_folder import load_llama, save_llama
from nnmpi.addons.language.run.decoder import NO_LIMIT
from nnmpi.addons.language.run.saved import saved_sizes, saved_special_tokens
from nnmpi.checkpoint import main
from nnmpi.comm import comm_self


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_llama(laws.llama(), tmp_path / "start")
    return tmp_path / "start"


def trainer(**options: object) -> Trainer:
    return Trainer(Config(**options), data=tokens(), comm=comm_self())


def test_a_model_by_name_has_the_tokens_and_windows_of_the_data() -> None:
    sizes = LlamaSizes(2, 4, 16, VOCABULARY, POSITIONS, 2, 64)
    assert trainer(model="llama:2x4x16:2").model.sizes == sizes
    alone = trainer(model="llama:2x4x16").model
    assert alone.sizes == sizes._replace(kv_heads=4)
    assert alone.layers[0].qkv_proj.weight.shape == (48, 16)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "mistral"}, "has model_type mistral: give gpt2 or llama"),
        ({"model_type": ["llama"]}, "has model_type ['llama']: give gpt2 or llama"),
        ([], "is no JSON object: give one with model_type gpt2 or llama"),
    ],
)
def test_folders_of_other_models_are_refused(config: object, words: str, folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(config))
    with refused(words):
        trainer(load=str(folder))


def test_a_folder_without_model_type_is_of_gpt2(tmp_path: Path) -> None:
    save_gpt2(nn.GPT(1, 2, 8, VOCABULARY, POSITIONS), tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    assert config.pop("model_type") == "gpt2"
    path.write_text(json.dumps(config))
    assert trainer(load=str(tmp_path)).config.model == "gpt:1x2x8"


def test_a_llama_has_no_dropout(folder: Path) -> None:
    for options in ({"model": "llama:1x2x8"}, {"load": str(folder)}):
        with refused("model llama:", "dropout 0.1 is an option of gpt models"):
            trainer(dropout=0.1, **options)


def test_a_folder_is_saved_as_it_was_loaded(folder: Path) -> None:
    made = trainer(load=str(folder), dtype="float32")
    assert made.config.model == "llama:2x10x20:5:9"
    assert trainer(load=str(folder), model="llama:2x10x20:5:9").model.sizes == laws.llama().sizes
    with refused("model gpt:2x10x20 with --load", "give --model llama:2x10x20:5:9"):
        trainer(load=str(folder), model="gpt:2x10x20")
    made.save(f"{folder.parent}/new/")
    before, after = (load_file(p / "model.safetensors") for p in (folder, folder.parent / "new"))
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)
    configs = [
        json.loads((path / "config.json").read_text()) for path in (folder, folder.parent / "new")
    ]
    assert configs[0] == configs[1]


def test_files_and_checkpoints_have_all_sizes_and_special_tokens(folder: Path) -> None:
    """That are not in the name of the model; also where the model is from no folder."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": [20, 22]}))
    file, saves = f"{folder.parent}/m.safetensors", f"{folder.parent}/saves"
    made = trainer(load=str(folder), epochs=1, steps=1, batch_size=9, checkpoint_dir=saves)
    made.fit()
    made.save(file)
    assert saved_sizes(file) == laws.llama().sizes
    assert saved_special_tokens(file, saved_sizes(file)) == ([], [20, 22])
    assert main(["export", saves, f"{folder.parent}/exported/"]) == 0
    exported = load_llama(folder.parent / "exported")
    assert exported.sizes == laws.llama().sizes
    assert exported.published["config.json"]["eos_token_id"] == [20, 22]
    for name, value in made.model.state_dict().items():
        np.testing.assert_array_equal(exported.state_dict()[name], value, err_msg=name)
    trainer(model="llama:2x4x16:2").save(file)
    assert saved_sizes(file) == LlamaSizes(2, 4, 16, VOCABULARY, POSITIONS, 2, 64)


def test_a_text_is_not_longer_than_the_positions() -> None:
    """Past them, the last half is taken again, as for a GPT."""
    made = trainer(model="llama:1x2x8")
    assert made.model.sizes.positions == POSITIONS < NO_LIMIT
    assert len(made.generate([1, 2], 2 * POSITIONS)) == 2 * POSITIONS


def test_windows_longer_than_the_positions_are_refused() -> None:
    def build() -> nn.Module:
        return nn.Llama(LlamaSizes(1, 2, 8, VOCABULARY, POSITIONS - 1))

    with refused(f"has {POSITIONS - 1} positions, and data", f"windows of {POSITIONS} tokens"):
        Trainer(Config(), build=build, data=tokens(), comm=comm_self())


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
