"""Fragments: parts of a model that replicas with local steps (local SGD) exchange in turn, instead
of the whole model at once.

A layer is a block with a number, such as `h.0` of a GPT or `layer1.0` of a ResNet, or else a module
with parameters of its own. Fragment i of P has layers i, i + P, and so on, in the order of their
use. Layers are numbered in the whole model, so all ranks agree, also those with only a part of it.

    wte  wpe  h.0  h.1  h.2  ln_f     P = 2
     0    1    0    1    0    1
"""

from nnmpi.nn.graph import Graph
from nnmpi.options.config import Config
from nnmpi.parallel.checks import Checks
from nnmpi.parallel.tensor.sharding import Sharding
from nnmpi.schedules.local_steps import LocalSteps


def local_steps(config: Config) -> LocalSteps:
    """Returns the schedule of local steps that a config requests."""
    return LocalSteps(config.every, config.fragments, config.apply_after)


def fragments(graph: Graph, count: int) -> dict[str, int]:
    """Returns a dict: path of each trained parameter -> its fragment, of `count`."""
    variables = [graph.variables[v] for v in graph.order]
    paths = [v.path for v in (*variables, *graph.variables) if v.is_trained]
    layers = {layer: i for i, layer in enumerate(dict.fromkeys(map(layer_of, paths)))}
    return {path: layers[layer_of(path)] % count for path in paths}


def check_fragments(config: Config, graph: Graph, sharding: Sharding) -> None:
    """Raises ValueError if the model has fewer layers than --fragments."""
    if config.sync == "local":
        layers = {layer_of(v.path) for v in graph.variables if v.is_trained}
        local_steps(config).check_run(len(layers))


def layer_of(path: str) -> str:
    """Returns the path of the layer to which a parameter belongs: its path up to the first number
    (`h.0` for `h.0.attn.weight`), or else its module (`ln_f` for `ln_f.weight`)."""
    modules = path.split(".")[:-1]
    numbers = (k for k, name in enumerate(modules, 1) if name.isdigit())
    return ".".join(modules[: next(numbers, len(modules))])


CHECKS = Checks(graph=check_fragments)
