"""Imports of PyTorch's modules that are not here: names of their packages, or what to write."""

import pkgutil
from importlib import import_module
from typing import Any

import pytest
from helpers.ops.oracle import needs_torch, pytorch
from helpers.programs import printed

import nnmpi
from nnmpi.addons.finder import MODULES

pytestmark = pytest.mark.all_add_ons

SAME: dict[str, Any] = {
    "from nnmpi.nn.modules.conv import Conv2d as x": lambda: nnmpi.nn.Conv2d,
    "from nnmpi.nn.modules.module import Module as x": lambda: nnmpi.nn.Module,
    "import nnmpi.nn.modules.loss; x = nnmpi.nn.modules.loss.MSELoss": lambda: nnmpi.nn.MSELoss,
    "from nnmpi.nn.modules import GRU as x": lambda: nnmpi.nn.GRU,
    "from nnmpi.nn import modules; x = modules.ReLU": lambda: nnmpi.nn.ReLU,
    "from nnmpi.distributions.categorical import Categorical as x": lambda: (
        nnmpi.distributions.Categorical
    ),
    "from nnmpi.distributions.kl import kl_divergence as x": lambda: (
        nnmpi.distributions.kl_divergence
    ),
    "from nnmpi.autograd.function import Function as x": lambda: nnmpi.autograd.Function,
    "from nnmpi.nn.parallel.distributed import DistributedDataParallel as x": lambda: (
        nnmpi.nn.parallel.DistributedDataParallel
    ),
    "from nnmpi.cuda.amp.grad_scaler import GradScaler as x": lambda: nnmpi.cuda.amp.GradScaler,
    "from nnmpi.optim.adamw import AdamW as x": lambda: nnmpi.optim.AdamW,
    "from nnmpi.utils.data._utils.collate import default_collate as x": lambda: (
        nnmpi.utils.data.default_collate
    ),
}

REFUSED = {
    "import nnmpi.fft": "No module named 'nnmpi.fft': write numpy.fft's functions",
    "import nnmpi.func": "No module named 'nnmpi.func': write nnmpi.autograd.grad",
    "import nnmpi.nn.utils.parametrize": "write weight_norm(layer) or spectral_norm(layer)",
    "from nnmpi.autograd.gradcheck import gradcheck": "write from nnmpi.autograd import gradcheck",
    "from nnmpi.distributions.poisson import Poisson": "formulas with tensor operations",
    "import nnmpi.distributed.fsdp": "write nnmpi.Trainer(Config(zero=3), ...)",
    "import nnmpi.distributed.rpc": "write nnmpi.distributed.send and recv",
    "import nnmpi.distributed.pipelining": "Config(pp=2, micro_batches=4)",
    "import nnmpi.distributed.tensor": "Config(tp=2)",
    "import nnmpi.distributed.checkpoint": "write nnmpi.save on rank 0",
    "import nnmpi.distributed.elastic": "write --elastic",
    "import nnmpi.distributed.algorithms": 'Config(compress="int8")',
    "import nnmpi.nn.modules.utils": "write a tuple: _pair(x) is (x, x)",
    "from nnmpi.nn.modules.conv import Conv3d": "layers take sequences and images, not volumes",
    "from nnmpi.nn.modules.batchnorm import _BatchNorm": "(nn.BatchNorm1d, nn.BatchNorm2d)",
    "from nnmpi.autograd.functional import jacobian": "write nnmpi.autograd.grad",
    "from nnmpi.nn.parameter import UninitializedParameter": "give the layer all its sizes",
    "from nnmpi.distributed import DeviceMesh": "new_group(ranks)",
    "import nnmpi.nothing": "No module named 'nnmpi.nothing'",
}


@pytest.mark.parametrize("statement", SAME)
def test_a_module_has_the_names_of_its_package(statement: str) -> None:
    scope: dict[str, Any] = {}
    exec(statement, scope)
    assert scope["x"] is SAME[statement]()


@pytest.mark.parametrize("statement", REFUSED)
def test_a_module_that_is_missing_says_what_to_write(statement: str) -> None:
    with pytest.raises(ImportError) as caught:
        exec(statement)
    assert REFUSED[statement] in str(caught.value)


@needs_torch
@pytest.mark.filterwarnings("ignore")
def test_each_module_is_there_or_has_a_hint() -> None:
    torch = pytorch()
    rooms = "", "autograd", "cuda", "distributed", "distributions", "nn", "nn.modules", "nn.utils"
    bare = []
    for room in (*rooms, "optim", "utils", "utils.data", "backends", "nn.parallel"):
        package = import_module(f"torch.{room}".rstrip("."))
        for module in pkgutil.iter_modules(package.__path__):
            name = f"{room}.{module.name}".lstrip(".")
            try:
                if not module.name.startswith("_"):
                    import_module(f"nnmpi.{name}")
            except ImportError as error:
                if ": " not in str(error):
                    bare.append(name)
    assert bare == []
    assert torch.__name__ == "torch"


def test_importing_nnmpi_adds_no_finder() -> None:
    program = """
import sys
before = [*sys.meta_path], [*sys.path_hooks]
import nnmpi
print(([*sys.meta_path], [*sys.path_hooks]) == before)
"""
    assert printed(program) == "True"


def test_a_module_of_an_add_on_is_found_under_its_public_name() -> None:
    program = """
import nnmpi.sim.pipeline
from nnmpi.addons.simulator import pipeline
from nnmpi.sim import collective
import nnmpi.addons.simulator.collective as there
print(nnmpi.sim.pipeline is pipeline, collective is there)
"""
    assert printed(program) == "True True"


@pytest.mark.parametrize("name", MODULES.where)
def test_a_module_of_an_add_on_has_one_name_more(name: str) -> None:
    there = import_module(MODULES.where[name])
    assert import_module(f"nnmpi.{name}") is there


def test_a_module_that_an_add_on_lacks_is_missing() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'nnmpi\.sim\.nothing'"):
        exec("import nnmpi.sim.nothing")
