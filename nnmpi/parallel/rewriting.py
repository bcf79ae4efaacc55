"""Rewriting of layers: a rank's part of a layer takes its place, or the layer changes its class."""

from collections.abc import Mapping
from typing import Any

from nnmpi.nn import Module


def become(layer: Module, kind: type[Module], attributes: Mapping[str, Any]) -> None:
    """Makes a layer one of another class, in place, with these attributes besides.

    A class is changed, and no new layer made, so that its parameters, hooks and buffers, and what
    refers to it in the model or outside, stay as they are.
    """
    layer.__class__ = kind
    for name, value in attributes.items():
        setattr(layer, name, value)


def replace(model: Module, new: Mapping[Module, Module]) -> None:
    """Puts other layers in the places of those that are given, wherever the model has them."""
    for module in [*dict.fromkeys(model.modules())]:
        for name, child in [*module._modules.items()]:
            if child in new:
                setattr(module, name, new[child])
