"""Reads and writes Llama models in the folders that the `transformers` library writes. Tensors have
other names in the files than in the model:

in the files, behind "model."            in the model
layers.0.self_attn.{q,k,v}_proj.weight   layers.0.qkv_proj.weight: for each key head the rows of its
                                         queries, of its key and of its value
layers.0.mlp.{gate,up}_proj.weight       layers.0.gate_up_proj.weight: in turn a row of each
layers.0.self_attn.o_proj.weight         layers.0.o_proj.weight
layers.0.mlp.down_proj.weight            layers.0.down_proj.weight

The weight of the output layer is lm_head.weight, in the files without "model." in front. If it is
tied to the token embedding, the files have only embed_tokens.weight.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from nnmpi.addons.language.models import gpt2
from nnmpi.addons.language.models.llama import RANGES, Llama, LlamaSizes
from nnmpi.nn.state import AS_IS, StorageOrder
from nnmpi.options.quoting import shown

PARTIAL = "partial_rotary_factor"


@dataclass(frozen=True)
class LlamaFormat(gpt2.FolderFormat):
    """The format of a folder that holds a Llama."""

    of_sizes, kind = LlamaSizes, ("llama", "LlamaForCausalLM", "a Llama of nnmpi")
    prefix, blocks, head = "model.", "layers", "lm_head.weight"
    tables: ClassVar[Mapping[str, str]] = {"embed_tokens.weight": "vocabulary", head: "vocabulary"}
    layers: ClassVar[Mapping[str, Sequence[str]]] = {
        "qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "o_proj": ("self_attn.o_proj",),
        "gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
        "down_proj": ("mlp.down_proj",),
    }
    ignored = ("rotary_emb.inv_freq",)
    keys = (
        *("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size"),
        *("max_position_embeddings", "num_key_value_heads", "intermediate_size", "rope_theta"),
        *("rms_norm_eps", "tie_word_embeddings"),
    )
    defaults: ClassVar[dict[str, Any]] = {
        "rope_theta": 10_000.0,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
    }
    expected: ClassVar[Mapping[str, Any]] = {
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "rope_parameters": {"rope_type": "default"},
        "rope_scaling": None,
        "quantization_config": None,
    }
    equal: ClassVar[Mapping[str, Sequence[Any]]] = {}

    @classmethod
    def of(cls, config: Any, path: Path) -> Self:
        """Returns the format of config.json; raises ValueError for other settings."""
        given = dict(config) if isinstance(config, dict) else {}
        rope = given.get("rope_parameters")
        if isinstance(rope, dict):  # transformers 5 has the other settings of angles in it
            rope = {"rope_type": "default", **rope}
            given |= {key: rope.pop(key) for key in ("rope_theta", PARTIAL) if key in rope}
            given["rope_parameters"] = rope
        if given.get("num_key_value_heads") is None:
            given["num_key_value_heads"] = given.get("num_attention_heads")
        form = super().of(given, path)
        check_ranges({**given, **dict(zip(cls.keys, form.sizes, strict=True))}, path)
        return form

    @property
    def stated(self) -> Sequence[Any]:
        """The sizes of the model in the order of `keys`, their names in config.json."""
        sizes: Sequence[Any] = self.sizes
        return sizes

    def order(self, path: str) -> StorageOrder:
        """Returns the order in which a file stores the rows of the tensor at a path."""
        heads, K = self.sizes.heads, self.sizes.kv_heads
        if path.endswith("qkv_proj.weight"):
            return StorageOrder(False, K, (heads // K, 1, 1))
        is_packed = path.endswith("gate_up_proj.weight")
        return StorageOrder(False, self.sizes.intermediate, (1, 1)) if is_packed else AS_IS

    def model(self, dropout: float = 0.0, published: Mapping[str, Any] | None = None) -> Llama:
        """Returns a Llama with initial weights; `dropout` is ignored, as it has none."""
        return Llama(self.sizes, published)


def check_ranges(given: Mapping[str, Any], path: Path) -> None:
    """Raises ValueError, which names it, for a number out of range for a Llama."""
    for key, name in zip(LlamaFormat.keys, LlamaSizes._fields, strict=True):
        least, most = RANGES.get(name, (-math.inf, math.inf))
        if not least <= given[key] <= most:
            wrong = shown(given[key], 60)
            raise ValueError(
                f"{shown(path)} has {key} {wrong}: it must be from {least:g} to {most:g}"
            )
    heads, kv_heads = given["num_attention_heads"], given["num_key_value_heads"]
    if heads % kv_heads:
        raise ValueError(
            f"{shown(path)} has num_key_value_heads {kv_heads}, which does not divide "
            f"num_attention_heads {heads}"
        )
    for key, value in (("head_dim", given["hidden_size"] // heads), (PARTIAL, 1.0)):
        if given.get(key, value) != value:
            other = shown(repr(given[key]), 60)
            raise ValueError(f"{shown(path)} has {key} {other}, not {value}")


def load_llama(folder: str | os.PathLike[str]) -> Llama:
    """Returns the Llama of a folder with config.json and model.safetensors."""
    model: Llama = gpt2.load_weights(gpt2.read_folder(LlamaFormat, folder), folder, 0.0)
    return model


def save_llama(model: Llama, folder: str | os.PathLike[str]) -> None:
    """Writes a Llama into a folder, as `nnmpi.addons.language.models.gpt2.save_folder` does."""
    gpt2.save_folder(model.state_dict(), LlamaFormat(model.sizes), model.published, folder)
