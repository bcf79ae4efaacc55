"""GPT-2 in the files that its weights are published in: config.json and model.safetensors.

there                         here
h.0.attn.c_attn.weight        (W, 3 H D): inputs x outputs, q of all heads before k and v
                              (H 3 D, W): outputs x inputs, and a head's q, k and v together
c_proj.weight, c_fc.weight    inputs x outputs, transposed here
lm_head.weight                wte.weight, here as well; most files do not have it
attn.bias, attn.masked_bias   masks, and no parameters
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from nnmpi import backend
from nnmpi.nn.gpt import GPT
from nnmpi.quoting import shown

CONFIG, WEIGHTS = "config.json", "model.safetensors"
PREFIX = "transformer."
MASKS = (".attn.bias", ".attn.masked_bias")
TRANSPOSED = ("attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
EXPECTED = {"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}
SIZES = ("n_layer", "n_head", "n_embd", "vocab_size", "n_positions")

Arrays = dict[str, np.ndarray]


def load_gpt2(folder: str | os.PathLike[str], dropout: float = 0.0) -> GPT:
    """The model of a folder with config.json and model.safetensors; `dropout` is for training."""
    path = Path(folder)
    config = _read_config(path / CONFIG)
    layers, heads, width, vocabulary, positions = (config[key] for key in SIZES)
    model = GPT(layers, heads, width, vocabulary, positions, dropout)
    try:
        tensors = load_file(path / WEIGHTS)
    except (OSError, SafetensorError) as error:
        reason = shown(" ".join(str(error).split()))
        raise ValueError(f"{shown(path / WEIGHTS)} cannot be read: {reason}") from None
    model.load_state_dict(_ours(tensors, heads))
    return model


def save_gpt2(model: GPT, folder: str | os.PathLike[str]) -> None:
    """Writes config.json and model.safetensors of a model into a folder, which is made."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **EXPECTED}
    sizes = len(model.h), model.heads, *model.wte.weight.shape[::-1], model.wpe.num_positions
    config |= dict(zip(SIZES, sizes, strict=True))
    (path / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    state = {name: backend.to_host(value) for name, value in model.state_dict().items()}
    save_file(_theirs(state, model.heads), path / WEIGHTS, {"format": "pt"})


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        missing = [key for key in SIZES if type(config[key]) is not int]
    except OSError as error:
        raise ValueError(f"{shown(path)} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{shown(path)} is no configuration of GPT-2, with the numbers {', '.join(SIZES)}: "
            f"{shown(str(error))}"
        ) from None
    others = [key for key, value in EXPECTED.items() if config.get(key, value) != value]
    if missing or others:
        found = ", ".join(f"{key} {shown(str(config[key]))}" for key in (*missing, *others))
        raise ValueError(f"{shown(path)} has {found}, which GPT-2 does not have")
    return dict(config)


def _ours(tensors: Mapping[str, np.ndarray], heads: int) -> Arrays:
    """The state of a GPT."""
    found = {}
    for given, value in tensors.items():
        name = given.removeprefix(PREFIX)
        if name.endswith(MASKS) or name == "lm_head.weight":
            continue
        if name.endswith("attn.c_attn.weight"):
            value = _by_head(value.T, heads)
        elif name.endswith("attn.c_attn.bias"):
            value = _by_head(value, heads)
        elif name.endswith(TRANSPOSED):
            value = value.T
        found[name] = value
    if "wte.weight" in found:
        found["head.weight"] = found["wte.weight"]
    return found


def _theirs(state: Mapping[str, np.ndarray], heads: int) -> Arrays:
    """The inverse of `_ours`."""
    found = {}
    for name, value in state.items():
        if name == "head.weight":
            continue
        if name.endswith("attn.c_attn.weight"):
            value = _by_part(value, heads).T
        elif name.endswith("attn.c_attn.bias"):
            value = _by_part(value, heads)
        elif name.endswith(TRANSPOSED):
            value = value.T
        found[PREFIX + name] = np.ascontiguousarray(value)
    return found


def _by_head(outputs: np.ndarray, heads: int) -> np.ndarray:
    """Rows q, k, v of all heads, in the order of the heads."""
    parts = outputs.reshape(3, heads, -1, *outputs.shape[1:])
    return parts.swapaxes(0, 1).reshape(outputs.shape)


def _by_part(outputs: np.ndarray, heads: int) -> np.ndarray:
    """The inverse of `_by_head`."""
    parts = outputs.reshape(heads, 3, -1, *outputs.shape[1:])
    return parts.swapaxes(0, 1).reshape(outputs.shape)
