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
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from nnmpi import backend
from nnmpi.nn.gpt import GPT, check_sizes
from nnmpi.nn.stored import AS_IS, Order
from nnmpi.nn.utils import skip_init
from nnmpi.quoting import shown

CONFIG, WEIGHTS = "config.json", "model.safetensors"
PREFIX = "transformer."
NO_PARAMETERS = (".attn.bias", ".attn.masked_bias", "lm_head.weight")
TRANSPOSED = ("attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
EMBEDDING, HEAD = "wte.weight", "head.weight"
EXPECTED = {
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "tie_word_embeddings": True,
}
METADATA = {"format": "pt"}
"""What transformers looks for in the weights' file."""


class Sizes(NamedTuple):
    """The numbers of a GPT."""

    layers: int
    heads: int
    width: int
    vocabulary: int
    positions: int

    @property
    def model(self) -> str:
        """The name of such a model, as --model has it."""
        return f"gpt:{self.layers}x{self.heads}x{self.width}"


KEYS = ("n_layer", "n_head", "n_embd", "vocab_size", "n_positions")
"""The names of these numbers in config.json."""

GPT2 = Sizes(12, 12, 768, 50_257, 1024)
"""The smallest of the published models, of 124 million parameters."""


class Published(NamedTuple):
    """A file of a model with so many heads (see `nnmpi.nn.stored.Form`)."""

    heads: int

    def found(self, names: Iterable[str]) -> dict[str, str]:
        """The names in a file by those here."""
        found = {n.removeprefix(PREFIX): n for n in names if not n.endswith(NO_PARAMETERS)}
        if EMBEDDING in found:
            found[HEAD] = found[EMBEDDING]
        return found

    def name(self, path: str) -> str | None:
        """The name in a file that is written; None for the tied weight, under its second name."""
        return None if path == HEAD else PREFIX + path

    def order(self, path: str) -> Order:
        """How a file has the numbers of a tensor."""
        if path.endswith("attn.c_attn.weight"):
            return Order(is_transposed=True, heads=self.heads)
        if path.endswith("attn.c_attn.bias"):
            return Order(heads=self.heads)
        return Order(is_transposed=True) if path.endswith(TRANSPOSED) else AS_IS


def load_gpt2(folder: str | os.PathLike[str], dropout: float = 0.0) -> GPT:
    """The model of a folder with config.json and model.safetensors; `dropout` is for training."""
    sizes = read_sizes(folder)
    model, form = GPT(*sizes, dropout), Published(sizes.heads)
    skip_init(model.parameters())
    path = Path(folder) / WEIGHTS
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        reason = shown(" ".join(str(error).split()))
        raise ValueError(f"{shown(path)} cannot be read: {reason}") from None
    found = form.found(tensors).items()
    model.load_state_dict({path: form.order(path).here(tensors[name]) for path, name in found})
    return model


def save_gpt2(model: GPT, folder: str | os.PathLike[str]) -> None:
    """Writes config.json and model.safetensors of a model into a folder, which is made."""
    path, form = Path(folder), Published(model.heads)
    path.mkdir(parents=True, exist_ok=True)
    (path / CONFIG).write_text(config_of(sizes_of(model)), encoding="utf-8")
    state = {
        name: form.order(path).there(backend.to_host(value))
        for path, value in model.state_dict().items()
        if (name := form.name(path))
    }
    save_file(state, path / WEIGHTS, METADATA)


def sizes_of(model: GPT) -> Sizes:
    """The sizes of a model, of which this rank may have a part."""
    vocabulary, width = model.wte.weight.place.shape
    return Sizes(len(model.h), model.heads, width, vocabulary, model.wpe.num_positions)


def config_of(sizes: Sizes) -> str:
    """The content of config.json."""
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **EXPECTED}
    config |= dict(zip(KEYS, sizes, strict=True))
    end = GPT2.vocabulary - 1 if sizes.vocabulary == GPT2.vocabulary else None
    config |= {"bos_token_id": end, "eos_token_id": end}  # of <|endoftext|>
    return json.dumps(config, indent=1) + "\n"


def read_sizes(folder: str | os.PathLike[str]) -> Sizes:
    """What config.json of a folder says; raises ValueError unless it is of a GPT-2."""
    path = Path(folder) / CONFIG
    config = _read_config(path)
    sizes = Sizes(*(config[key] for key in KEYS))
    try:
        check_sizes(*sizes[:3])
    except ValueError as error:
        raise ValueError(f"{shown(path)}: {error}") from None
    return sizes


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        missing = [key for key in KEYS if type(config[key]) is not int]
    except OSError as error:
        raise ValueError(f"{shown(path)} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{shown(path)} is no configuration of GPT-2, with the numbers {', '.join(KEYS)}: "
            f"{shown(str(error))}"
        ) from None
    others = [key for key, value in EXPECTED.items() if config.get(key, value) != value]
    if missing or others:
        found = ", ".join(f"{key} {shown(str(config[key]))}" for key in (*missing, *others))
        raise ValueError(f"{shown(path)} has {found}, which GPT-2 does not have")
    return dict(config)
