"""--load and --save of GPT-2's folders."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.bpe import SAMPLE, trained
from helpers.commands import Command
from helpers.datafiles import refused
from helpers.training import laws_gpt2 as laws
from helpers.training.laws_language import POSITIONS, VOCABULARY, tokens
from safetensors.numpy import load_file, save_file

from nnmpi import Config, Trainer, nn
from nnmpi.addons.language.models.gpt2 import load_gpt2, save_gpt2
from nnmpi.checkpoint import main
from nnmpi.comm import Comm, OtherRankError, comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.data import Dataset


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_gpt2(laws.model(), tmp_path / "start")
    return tmp_path / "start"


def trainer(data: Dataset | None = None, **options: object) -> Trainer:
    return Trainer(Config(**options), data=data or tokens(), comm=comm_self())


def test_a_folder_is_saved_as_it_was_loaded(folder: Path) -> None:
    made = trainer(load=str(folder), dtype="float32")
    assert made.config.model == "gpt:2x5x20"
    made.save(f"{folder.parent}/new/")
    for name in ("a", "b"):
        made.save(f"{folder.parent}/{name}.safetensors")  # a file of ours has other names
        assert "head.weight" in load_file(folder.parent / f"{name}.safetensors")
    before, after = (load_file(p / "model.safetensors") for p in (folder, folder.parent / "new"))
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)
    assert json.loads((folder.parent / "new/config.json").read_text()) == json.loads(
        (folder / "config.json").read_text()
    )
    again = load_gpt2(folder.parent / "new")
    for (name, ours), (_, theirs) in zip(
        again.named_parameters(), laws.model().named_parameters(), strict=True
    ):
        np.testing.assert_array_equal(ours.data, theirs.data, err_msg=name)


def test_special_tokens_and_all_else_that_a_folder_says_is_kept(folder: Path) -> None:
    """By the library, by a run, and by what is exported of its checkpoint."""
    config = json.loads((folder / "config.json").read_text())
    config |= {"bos_token_id": 21, "eos_token_id": [20, 22], "task_specific_params": {"a": [1]}}
    config["activation_function"] = "gelu_pytorch_tanh"
    generation = {"eos_token_id": 22, "max_new_tokens": 9}
    of_file = {"n_inner": None, "torch_dtype": "float16", "architectures": ["GPT2Model"]}
    (folder / "config.json").write_text(json.dumps({**config, **of_file}))
    (folder / "generation_config.json").write_text(json.dumps(generation))

    save_gpt2(load_gpt2(folder), folder.parent / "library")
    saves = f"{folder.parent}/saves"
    made = trainer(load=str(folder), epochs=1, steps=1, batch_size=9, checkpoint_dir=saves)
    made.rearrange(micro_batches=2)
    made.fit()
    made.save(f"{folder.parent}/run/")
    assert main(["export", saves, f"{folder.parent}/exported/"]) == 0
    for name in ("library", "run", "exported"):
        there = folder.parent / name
        written = json.loads((there / "config.json").read_text())
        assert written == {**config, "n_inner": None}, name
        assert json.loads((there / "generation_config.json").read_text()) == generation


def test_a_trainer_s_text_ends_at_the_folder_s_special_token(folder: Path) -> None:
    """On two ranks, which compare these tokens."""
    full = trainer(load=str(folder)).generate([1, 2], 9).tolist()
    end = {"eos_token_id": full[4]}
    (folder / "generation_config.json").write_text(json.dumps(end))

    def text(comm: Comm) -> list[int]:
        with Trainer(Config(load=str(folder), pp=2), data=tokens(), comm=comm) as made:
            return made.generate([1, 2], 9).tolist()

    assert threads.run(2, text) == [full[: full.index(full[4]) + 1]] * 2


def test_a_snapshot_of_a_folder_s_model_is_restored(folder: Path) -> None:
    made = trainer(load=str(folder), epochs=1, batch_size=9, dropout=0.1)
    made.rearrange(micro_batches=2)
    assert made.model.wte.weight.shape == (23, 20)
    assert made.fit()["event"] == "done"


def test_a_model_that_is_named_has_to_be_that_of_the_folder(folder: Path, command: Command) -> None:
    for name in ("gpt:2x5x20", "digits-cnn"):  # the last is the default
        assert trainer(load=str(folder), model=name).config.model == "gpt:2x5x20"
    sizes, remedy = "2 layers, 5 heads and width 20", "give --model gpt:2x5x20"
    for name in ("gpt:2x4x20", "gpt2", "iris-mlp"):
        with refused(f"model {name} with --load", sizes, remedy):
            trainer(load=str(folder), model=name)
    for name in ("digits-cnn", "gpt2"):
        completed = command("--load", str(folder), "--model", name, "--data", "text")
        assert completed.status == 2
        assert f"model {name} with --load" in completed.err
        assert sizes in completed.err


def test_data_that_the_model_cannot_take_is_refused(folder: Path) -> None:
    data = tokens()
    with refused("has a vocabulary of 23, and data tokens has 24 tokens"):
        trainer(data._replace(classes=24), load=str(folder))
    x, y = (np.tile(a, (1, 2)) for a in data.train)
    with refused("has 8 positions, and data", "windows of 12 tokens", "--context 8"):
        Trainer(Config(load=str(folder)), data=(x, y), comm=comm_self())
    with refused("takes windows of tokens, and data digits has none"):
        Trainer(Config(load=str(folder), data="digits"), comm=comm_self())


def test_a_text_gets_the_tokenizer_of_the_folder(tmp_path: Path) -> None:
    """Characters take its place in a folder without one; there the data may have fewer tokens."""
    text = tmp_path / "text"
    text.write_text(SAMPLE * 60)
    save_gpt2(nn.GPT(1, 1, 4, 450, 9), tmp_path / "gpt2")
    config = Config(load=str(tmp_path / "gpt2"), data=f"text:{text}", context=8)
    for unit, size in (("characters", len({*SAMPLE})), ("tokens", 400)):
        with Trainer(config, comm=comm_self()) as made:
            assert made.dataset.classes == size
            assert unit in made.dataset.note
        trained(tmp_path / "gpt2")


@pytest.mark.parametrize(
    ("file", "words"), [("model.safetensors", ""), ("config.json", "config.json")]
)
def test_a_bad_folder_is_refused(file: str, words: str, folder: Path) -> None:
    """Here one without a file; test_gpt2.py has other faults."""
    (folder / file).unlink()
    with refused(str(folder), words):
        trainer(load=str(folder))


def test_an_output_layer_that_is_not_tied_is_refused(folder: Path) -> None:
    """On all ranks: the first of a node compares."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    embedding = tensors["transformer.wte.weight"]
    save_file({**tensors, "lm_head.weight": embedding.copy()}, path)
    trainer(load=str(folder))
    save_file({**tensors, "lm_head.weight": embedding + 1}, path)

    def rank(comm: Comm) -> None:
        error = OtherRankError if comm.rank else ValueError
        with pytest.raises(error, match=r"lm_head.weight differs from transformer.wte.weight"):
            Trainer(Config(load=str(folder), pp=2), data=tokens(), comm=comm)

    threads.run(2, rank)


def test_a_folder_takes_no_other_model(tmp_path: Path) -> None:
    for path in (f"{tmp_path}/new/", str(tmp_path)):
        with refused(f"cannot save {path}: it is a directory", "the model is a Sequential"):
            Trainer(Config(model="iris-mlp", data="iris", save=path), comm=comm_self())
    with refused(f"there is no directory {tmp_path}/none"):
        trainer(model="gpt:1x1x4", save=f"{tmp_path}/none/new/")
    assert not list(tmp_path.iterdir())
    (tmp_path / "m").touch()
    with refused(f"cannot save {tmp_path}/m/: the folder cannot be made", "leave out the slash"):
        trainer(model="gpt:1x1x4", save=f"{tmp_path}/m/")


def test_dropout_is_an_option_of_gpt_models() -> None:
    assert trainer(model="gpt:1x2x4", dropout=0.25).model.drop.p == 0.25
    for options in ({"model": "mlp:6-4-17"}, {}):
        with refused("dropout 0.1 is", "an option of gpt models"):
            trainer(dropout=0.1, **options)
    for build in (make, gpt):
        with refused(f"model {build.__name__}", "dropout 0.1 is an option of gpt models"):
            Trainer(Config(dropout=0.1), build=build, data=tokens(), comm=comm_self())


def gpt() -> nn.Module:
    return nn.GPT(1, 2, 4, 17, 6)


def make() -> nn.Module:
    return nn.GPT(1, 2, 4, VOCABULARY, POSITIONS)
