"""Options: defaults, values out of range, TOML files and flags."""

import math
import sys
from dataclasses import Field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.options import another

from nnmpi import Trainer, train
from nnmpi.comm import comm_self
from nnmpi.options import features
from nnmpi.options.cli import from_toml
from nnmpi.options.config import Config, options
from nnmpi.options.option import kind_of
from nnmpi.parallel import strategies

BAD: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "no epochs": ({"epochs": 0}, ("epochs 0 must be at least 1; leave it out",)),
    "no steps": ({"steps": 0}, ("steps 0", "at least 1")),
    "no batch": ({"batch_size": -3}, ("batch_size -3", "at least 1")),
    "seed": ({"seed": -1}, ("seed -1", "at least 0")),
    "lr 0": ({"lr": 0}, ("lr 0.0", "above 0", "0.003")),
    "lr NaN": ({"lr": math.nan}, ("lr nan", "above 0")),
    "lr inf": ({"lr": math.inf}, ("lr inf", "a number")),
    "lr beyond float": ({"lr": 10**400}, ("lr", "1.79769e+308")),
    "momentum 1": ({"momentum": 1.0}, ("momentum 1.0", "less than 1")),
    "momentum below 0": ({"momentum": -0.1}, ("momentum -0.1", "at least 0")),
    "momentum NaN": ({"momentum": math.nan}, ("momentum nan",)),
    "dp": ({"dp": 0}, ("dp 0", "at least 1")),
    "micro-batches": ({"micro_batches": 0}, ("micro_batches 0", "at least 1")),
    "bucket": ({"bucket_mb": 0.0}, ("bucket_mb 0.0", "above 0")),
    "bucket inf": ({"bucket_mb": math.inf}, ("bucket_mb inf", "a number above 0")),
    "allreduce": ({"allreduce": "star"}, ("'star'", "ring, tree")),
    "progress": ({"progress": "wait"}, ("'wait'", "poll, thread")),
    "sync": ({"sync": "never"}, ("'never'", "bsp, ssp, asp")),
    "staleness": ({"staleness": -1}, ("staleness -1", "at least 0")),
    "no slices": ({"slices": 0}, ("slices 0", "at least 1")),
    "servers": ({"servers": -1}, ("servers -1", "at least 0")),
    "decay": ({"weight_decay": -1e-4}, ("weight_decay -0.0001", "at least 0")),
    "decay inf": ({"weight_decay": math.inf}, ("weight_decay inf", "a number of at least 0")),
    "clip 0": ({"clip_norm": 0.0}, ("clip_norm 0.0", "above 0", "leave it out")),
    "clip NaN": ({"clip_norm": math.nan}, ("clip_norm nan", "leave it out")),
    "optimizer": ({"optimizer": "lion"}, ("'lion'", "sgd, adam, adamw, rmsprop")),
    "dtype": ({"dtype": "int8"}, ("'int8'", "float32, float64")),
    "codec": ({"compress": "zip"}, ("compress 'zip'", "topk:FRACTION", "powersgd:RANK")),
    "fraction NaN": ({"compress": "topk:nan"}, ("compress 'topk:nan'", "at most 1")),
    "device": ({"device": "tpu"}, ("'tpu'", "cpu, cuda, auto")),
    "convolution": ({"convolution": "fft"}, ("'fft'", "winograd2, winograd4, im2col")),
    "str for an int": ({"epochs": "3"}, ("epochs '3'", "int")),
    "half an epoch": ({"epochs": 1.5}, ("epochs 1.5", "int")),
    "a whole float": ({"epochs": 2.0}, ("epochs 2.0", "int")),
    "bool for an int": ({"epochs": True}, ("epochs True", "int")),
    "bool for a float": ({"lr": True}, ("lr True", "float")),
    "int for a bool": ({"quiet": 1}, ("quiet 1", "bool")),
    "int for a str": ({"model": 3}, ("model 3", "str")),
    "None for an int": ({"batch_size": None}, ("batch_size None", "int")),
    "None for a str": ({"data": None}, ("data None", "str")),
    "PyTorch's name": (
        {"learning_rate": 1.0},
        ("learning_rate is not an option; did you mean lr?",),
    ),
    "spelt out": ({"data_parallel": 2}, ("did you mean dp?",)),
    "a near miss": ({"lr_scheduler": "cosine"}, ("did you mean lr_schedule?",)),
    "an unknown schedule": ({"lr_schedule": "onecycle"}, ("'onecycle'", "constant, cosine")),
    **{
        f"augment {text}": ({"augment": text}, (repr(text), "crop:PIXELS+flip"))
        for text in ("crop", "crop:0", "crop:-1", "flip:2", "flip+flip", "crop:2+", "turn")
    },
    "empty model": ({"model": ""}, ("model is empty", "leave it out")),
    "empty save": ({"save": ""}, ("save is empty", "leave it out")),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
def test_a_bad_value_is_a_one_line_error(case: Any) -> None:
    values, words = case
    with refused(*words):
        Config(**values)
    with refused(*words):
        replace(Config(), **values)


@pytest.mark.parametrize("name", ["topk:5e-324", "topk:1", "powersgd:1"])
def test_the_ends_of_what_a_codec_takes_are_accepted(name: str) -> None:
    assert Config(compress=name).compress == name


def test_least_values_are_accepted() -> None:
    c = Config(epochs=1, steps=1, batch_size=1, seed=0, momentum=0, weight_decay=0, lr=1e-300)
    assert (c.epochs, c.steps, c.batch_size, c.seed, c.momentum) == (1, 1, 1, 0, 0.0)


@pytest.mark.parametrize(
    ("name", "value", "plain"),
    [
        ("lr", 1, 1.0),
        ("lr", np.float64(0.5), 0.5),
        ("lr", np.float32(0.5), 0.5),
        ("epochs", np.int64(3), 3),
        ("clip_norm", np.int8(2), 2.0),
    ],
)
def test_numpy_numbers_become_python_numbers(name: str, value: Any, plain: Any) -> None:
    """Every event of a run can then be written as JSON."""
    got = getattr(Config(**{name: value}), name)
    assert (got, type(got)) == (plain, type(plain))


# ---- files


def write(folder: Path, text: str) -> str:
    path = folder / "run.toml"
    path.write_text(text)
    return str(path)


FLAT = 'model = "iris-mlp"\ndata = "iris"\nepochs = 3\nbatch-size = 16\nlr = 1\nquiet = true\n'
GROUPED = """
[model]
model = "iris-mlp"
[data]
data = "iris"
[training]
epochs = 3
batch_size = 16
lr = 1.0
[other]
quiet = true
"""
MIXED = 'model = "iris-mlp"\ndata = "iris"\nquiet = true\n[training]\nepochs=3\nbatch-size=16\nlr=1'


@pytest.mark.parametrize("text", [FLAT, GROUPED, MIXED], ids=["flat", "grouped", "mixed"])
def test_a_file_may_be_flat_or_in_groups(tmp_path: Path, text: str) -> None:
    wanted = Config(model="iris-mlp", data="iris", epochs=3, batch_size=16, lr=1.0, quiet=True)
    assert from_toml(write(tmp_path, text)) == wanted


BAD_FILES: dict[str, tuple[str, tuple[str, ...]]] = {
    "unknown key": ("learning = 1", ("learning is not an option",)),
    "near miss": ("epoch = 1", ("epoch is not an option", "did you mean epochs?")),
    "near miss in a group": ("[training]\nbatchsize = 1", ("did you mean batch_size?",)),
    "unknown group": ("[trainin]\nlr = 1", ("trainin is not an option",)),
    "group in a group": ("[training.more]\nlr = 1", ("more is not an option",)),
    "type": ('epochs = "3"', ("epochs '3'", "int")),
    "date": ("model = 2020-01-01", ("model", "str")),
    "value": ("lr = -1", ("lr -1.0", "above 0")),
    "huge": (f"lr = 1{'0' * 400}", ("lr", "1.79769e+308")),
    "empty": ('log = ""', ("log is empty",)),
    "broken": ("lr = [", ("is not TOML",)),
    "twice": ("lr = 1\nlr = 2", ("is not TOML",)),
    "twice, in two tables": ("seed = 1\n[training]\nseed = 2", ("seed is given twice; keep one",)),
    "twice, in two spellings": (
        "data-dir = '.'\ndata_dir = '.'",
        ("data_dir is given twice as data-dir and as data_dir; keep one",),
    ),
    "twice, by an alias": (
        "slices = 4\nshards = 5",
        ("slices is given twice as slices and as shards; keep one",),
    ),
}


@pytest.mark.parametrize("case", BAD_FILES.values(), ids=BAD_FILES)
def test_a_bad_file_is_a_one_line_error_with_its_name(tmp_path: Path, case: Any) -> None:
    text, words = case
    with refused("config", "run.toml", *words):
        from_toml(write(tmp_path, text))


def test_a_file_that_cannot_be_read_is_a_one_line_error(tmp_path: Path) -> None:
    with refused("none.toml", "No such file", "name a TOML file"):
        from_toml(str(tmp_path / "none.toml"))
    with refused(str(tmp_path), "directory", "name a TOML file"):
        from_toml(str(tmp_path))
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with refused("bytes.toml", "is not TOML"):
        from_toml(str(tmp_path / "bytes.toml"))


# ---- flags


def given(option: "Field[Any]") -> list[str]:
    """The flag that gives an option another value."""
    flag, value = option.name.replace("_", "-"), another(option)
    return (
        [f"--{flag}={value}"]
        if kind_of(option) is not bool
        else [f"--{'' if value else 'no-'}{flag}"]
    )


@pytest.mark.parametrize("option", options(), ids=lambda option: option.name)
def test_every_flag_sets_its_option(option: "Field[Any]") -> None:
    assert train.config(given(option)) == replace(Config(), **{option.name: another(option)})
    assert another(option) != option.default


def test_flags_override_the_file_in_any_order(tmp_path: Path) -> None:
    path = write(tmp_path, "epochs = 3\nseed = 4\nquiet = true\nclip-norm = 5")
    wanted = Config(epochs=2, seed=4, quiet=False, clip_norm=5.0)
    for arguments in (["--config", path, "--epochs", "2"], ["--epochs", "2", "--config", path]):
        assert train.config([*arguments, "--no-quiet"]) == wanted


@pytest.mark.parametrize(
    ("flag", "value"), [("report", "run.html"), ("recompute", "stage"), ("backup", 0)]
)
def test_flags_may_be_given_without_a_value(flag: str, value: object) -> None:
    for beside in (["--seed", "3"], []):  # before another flag, and as the last one
        assert getattr(train.config([f"--{flag}", *beside]), flag) == value
    assert getattr(train.config([f"--{flag}={value}"]), flag) == value


def test_a_file_may_ask_for_a_report_without_a_name(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("report = true")
    assert from_toml(str(tmp_path / "run.toml")).report == "run.html"


def test_shards_is_another_name_for_slices(tmp_path: Path) -> None:
    wanted = Config(reproducible=True, slices=5)
    assert train.config(["--reproducible", "--slices", "5"]) == wanted
    assert train.config(["--reproducible", "--shards", "5"]) == wanted
    assert from_toml(write(tmp_path, "reproducible = true\nshards = 5")) == wanted


def test_of_a_flag_given_twice_the_last_one_counts(tmp_path: Path) -> None:
    """Under either name, as always in argparse; flags override a file under either name too."""
    assert train.config(["--slices", "4", "--shards", "5"]).slices == 5
    assert train.config(["--shards", "5", "--slices", "4"]).slices == 4
    path = write(tmp_path, "shards = 3")
    assert train.config(["--config", path, "--slices", "6"]).slices == 6


def test_a_layout_that_cuts_positions_sets_no_other_option() -> None:
    """It would stay where the layout is left out."""
    config = Config(tp=2, layout="length:tp")
    assert config.cuts_positions
    assert replace(config, layout=None) == Config(tp=2)
    with refused("cp 2 with layout length:tp: both cut the positions of sequences"):
        strategies.check(replace(config, cp=2), 4)


def test_training_in_bfloat16_needs_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with refused("dtype bfloat16 needs the package ml_dtypes", "pip install", "or use float16"):
        Trainer(Config("iris-mlp", data="iris", dtype="bfloat16"), comm=comm_self())


def test_only_options_of_core_are_given_by_position() -> None:
    assert Config("iris-mlp").model == "iris-mlp"
    with pytest.raises(TypeError):
        Config("iris-mlp", model="mlp:4-3")


def test_a_value_of_one_is_said() -> None:
    assert features.given(Config(zero=1), "zero") == "zero 1"
    assert features.given(Config(verify=True), "verify") == "verify"
