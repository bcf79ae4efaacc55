"""Language models are loaded when they are used first, under the names that they always have."""

import pickle
from pathlib import Path

import pytest
from helpers.programs import printed

from nnmpi import addons
from nnmpi.addons.language.models.gpt import GPT
from nnmpi.addons.language.models.llama import Llama


@pytest.mark.parametrize("name", addons.names_of("nnmpi.data"))
def test_data_has_the_modules_of_add_ons(name: str) -> None:
    program = (
        f"import nnmpi; there = nnmpi.data.{name}; import nnmpi.data.{name} as x; print(x is there)"
    )
    assert printed(program) == "True"


def test_names_of_add_ons_are_imported_by_a_star() -> None:
    program = "from nnmpi.nn import *; print(GPT.__name__, Llama.__name__)"
    assert printed(program) == "GPT Llama"


def test_a_model_of_an_add_on_is_pickled() -> None:
    kept = pickle.dumps((GPT, Llama))
    program = f"import pickle; print(*(c.__module__ for c in pickle.loads({kept!r})))"
    assert printed(program) == "nnmpi.addons.language.models.gpt nnmpi.addons.language.models.llama"


def test_an_mlp_is_trained_without_language_models(tmp_path: Path) -> None:
    options = {"data": "digits", "steps": 2, "save": str(tmp_path / "saved")}
    checkpoints = {"checkpoint_dir": str(tmp_path / "checkpoints"), "save_every": "1"}
    program = (
        "import sys, nnmpi\n"
        "from nnmpi.io.output import NullReport\n"
        f"options = {options!r}\n"
        f"for more in ({checkpoints!r}, {{'load': options['save']}}):\n"
        "    config = nnmpi.Config(model='mlp:64-8-10', **options, **more)\n"
        "    with nnmpi.Trainer(config) as trainer:\n"
        "        trainer.fit(NullReport())\n"
        "folders = nnmpi.addons.ADD_ONS['language'].modules\n"
        "used = {m for m in sys.modules if m.startswith(folders)}\n"
        "few = {f'nnmpi.addons.language{name}' for name in ('', '.options', '.text_data')}\n"
        "print(*used - few)"
    )
    assert printed(program) == ""
