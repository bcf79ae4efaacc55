"""Names that are missing: attributes and `from` imports say what to write."""

import pytest

import nnmpi
from nnmpi.addons import finder

IMPORTS = {
    "from nnmpi import vmap": "nnmpi has no 'vmap': write it for a batch",
    "from nnmpi import set_printoptions": "write numpy.set_printoptions",
    "from nnmpi.nn import Conv3d": "nnmpi.nn has no 'Conv3d': layers take sequences and images",
    "from nnmpi.nn.functional import fold": "nnmpi.nn.functional has no 'fold': take the layer",
    "from nnmpi.nn.utils import clip_grad_norm": "write nnmpi.nn.utils.clip_grad_norm_",
    "from nnmpi.nn.utils import parametrizations": "write weight_norm",
    "from nnmpi.optim import SparseAdam": "use Adam with a schedule",
    "from nnmpi.optim.lr_scheduler import NoamLR": "use LambdaLR(optimizer, f)",
    "from nnmpi.utils import tensorboard": "tensorboardX.SummaryWriter",
    "from nnmpi.utils.data import ChainDataset": "write a Dataset with __getitem__",
    "from nnmpi.distributions import Poisson": "formulas with tensor operations",
}


@pytest.mark.parametrize("statement", IMPORTS)
def test_an_import_of_a_name_says_what_to_write(statement: str) -> None:
    with pytest.raises(ImportError) as caught:
        exec(statement)
    assert IMPORTS[statement] in str(caught.value)
    _, package, _, name = statement.split()
    module = __import__(package, fromlist=["_"])
    assert not hasattr(module, name)
    with pytest.raises(AttributeError) as of_attribute:
        getattr(module, name)
    assert str(of_attribute.value) == str(caught.value)


def test_names_that_are_there_are_imported() -> None:
    scope: dict[str, object] = {}
    exec("from nnmpi import Trainer, Generator; from nnmpi.optim import NAdam", scope)
    assert scope["Trainer"] is nnmpi.Trainer
    assert finder.no_name("nnmpi", "fft", "functions and methods").startswith("nnmpi has no")
