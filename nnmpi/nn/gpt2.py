"""GPT-2 in the files in which its weights are published.

in the files                   in the model
h.0.attn.c_attn.weight         (W, 3 H D): inputs x outputs, q of all heads, then k, then v
                               (H 3 D, W): outputs x inputs, with q, k and v of each head together
c_proj.weight, c_fc.weight     inputs x outputs; transposed in the model
lm_head.weight                 wte.weight in the model as well; must be equal in files that have it
attn.bias, attn.masked_bias    masks, which are not parameters
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from nnmpi.nn.gpt import GPT, GPTSizes, check_gpt
from nnmpi.nn.place import Place
from nnmpi.nn.published import (
    BEGIN,
    CONFIG,
    END,
    FolderFormat,
    load_weights,
    published_in,
    read_folder,
    save_folder,
)
from nnmpi.nn.state import AS_IS, StorageOrder
from nnmpi.options.quoting import shown

PREFIX = "transformer."
LM_HEAD = "lm_head.weight"
NO_PARAMETERS = (".attn.bias", ".attn.masked_bias", LM_HEAD)
TRANSPOSED = ("attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
EMBEDDING, POSITIONS, HEAD = "wte.weight", "wpe.weight", "head.weight"
EXPECTED = {
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "tie_word_embeddings": True,
}
EQUAL = {"activation_function": ("gelu_pytorch_tanh",)}
"""Other values that mean the same as the expected ones."""

KEYS = ("n_layer", "n_head", "n_embd", "vocab_size", "n_positions")
"""The names of the fields of `GPTSizes` in config.json."""

GPT2 = GPTSizes(12, 12, 768, 50_257, 1024)
"""The sizes of the smallest published model, with 124 million parameters."""

QKV = (1, 1, 1)


@dataclass(frozen=True)
class GPT2Format(FolderFormat):
    """The format of a folder of a GPT-2 of these sizes (see `nnmpi.nn.state.FileFormat`)."""

    sizes: GPTSizes
    kind, blocks = "gpt2", "h"

    def names_by_path(self, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Returns the names in a file by the path of their tensor in the model."""
        parameters = (n for n in names if not n.endswith(NO_PARAMETERS))
        paths: dict[str, tuple[str, ...]] = {n.removeprefix(PREFIX): (n,) for n in parameters}
        return paths | ({HEAD: paths[EMBEDDING]} if EMBEDDING in paths else {})

    def tied(self, names: Iterable[str]) -> list[tuple[str, str]]:
        """Returns the pair of embedding and output layer, if a file has both."""
        names_in_file = {n.removeprefix(PREFIX): n for n in names}
        has_both = {EMBEDDING, LM_HEAD} <= names_in_file.keys()
        return [(names_in_file[EMBEDDING], names_in_file[LM_HEAD])] if has_both else []

    def names(self, path: str) -> tuple[str, ...]:
        """Returns the name to write a tensor under; none for the tied weight under its second
        path."""
        return () if path == HEAD else (PREFIX + path,)

    def order(self, path: str) -> StorageOrder:
        """Returns how a file stores the elements of a tensor."""
        if path.endswith("attn.c_attn.weight"):
            return StorageOrder(True, self.sizes.heads, QKV)
        if path.endswith("attn.c_attn.bias"):
            return StorageOrder(False, self.sizes.heads, QKV)
        return StorageOrder(is_transposed=True) if path.endswith(TRANSPOSED) else AS_IS

    @classmethod
    def of(cls, config: Any, path: Path) -> Self:
        """Returns the format for the sizes in config.json; raises ValueError unless it is that of a
        GPT-2."""
        if not isinstance(config, dict) or not config.keys() >= {*KEYS}:
            raise ValueError(
                f"{shown(path)} is not a configuration of GPT-2, which has the keys "
                f"{', '.join(KEYS)}"
            )
        missing = [key for key in KEYS if type(config[key]) is not int]
        # a setting that the file leaves out has its default in transformers, the expected value
        others = [
            key
            for key, value in EXPECTED.items()
            if config.get(key, value) not in (value, *EQUAL.get(key, ()))
        ]
        if missing or others:
            values = ", ".join(f"{key} {shown(str(config[key]))}" for key in (*missing, *others))
            raise ValueError(f"{shown(path)} has {values}, which GPT-2 does not have")
        return cls(GPTSizes(*(config[key] for key in KEYS)))

    def config(self, published: Mapping[str, Any]) -> dict[str, Any]:
        """Returns config.json of a model that was loaded from a folder with these files."""
        end = GPT2.vocabulary - 1 if self.sizes.vocabulary == GPT2.vocabulary else None
        start = {BEGIN: end, END: end}  # the token <|endoftext|>
        kept = {**EXPECTED, **published.get(CONFIG, start)}
        named = {"model_type": self.kind, "architectures": ["GPT2LMHeadModel"]}
        return kept | dict(zip(KEYS, self.sizes, strict=True)) | named

    def model(self, dropout: float = 0.0, published: Mapping[str, Any] | None = None) -> GPT:
        """Returns a model of these sizes."""
        return GPT(*self.sizes, dropout, published)

    def outer(self) -> tuple[list[Place], int]:
        """Returns the places of both embeddings, and the number of blocks."""
        layers, heads, width, *rows = self.sizes
        check_gpt(layers, heads, width)
        pairs = zip((EMBEDDING, POSITIONS), rows, strict=True)
        return [Place.of_whole(path, (n, width)) for path, n in pairs], layers


def load_gpt2(folder: str | os.PathLike[str], dropout: float = 0.0) -> GPT:
    """Returns the model of a folder with config.json and model.safetensors, or with the shards of
    an index; `dropout` is for training it further."""
    form = read_folder(GPT2Format, folder)
    return load_weights(form.model(dropout, published_in(folder)), form, folder)


def save_gpt2(model: GPT, folder: str | os.PathLike[str]) -> None:
    """Writes a model into a folder, as `nnmpi.nn.published.save_folder` does."""
    save_folder(model.state_dict(), GPT2Format(model.sizes), model.published, folder)
