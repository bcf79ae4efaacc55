"""The floating-point operations of a training step, of linear layers and convolutions alone."""

from functools import cache
from math import prod
from typing import Any

from lib.models import WORKLOADS, batch


@cache
def operations(case: str) -> float:
    """Two for each multiply-add of a step on the batch of a case, in its plain form: outputs,
    gradients of weights, and gradients of inputs of all layers but the first.

    Convolutions by Winograd make fewer. The shapes are those of one forward pass.
    """
    from nnmpi import nn, no_grad  # not above: PyTorch's processes import nothing of nnmpi

    w = WORKLOADS[case]
    model = nn.Sequential(*w.layers(nn))
    found = list[int]()

    def count(layer: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """The weight of a transposed convolution has the channels of inputs first."""
        elements = inputs[0] if isinstance(layer, nn.ConvTranspose2d) else output
        found.append(prod(elements.shape) * prod(layer.weight.shape[1:]))

    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            layer.register_forward_hook(count)
    with no_grad():
        model(batch(w)[0])
    return 2.0 * (3 * sum(found) - found[0])
