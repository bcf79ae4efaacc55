"""Weights in shards with an index, as transformers writes those of large models."""

import json
from pathlib import Path

from safetensors.numpy import load_file, save_file

INDEX = "model.safetensors.index.json"


def cut(folder: Path, count: int) -> dict[str, str]:
    """Replaces the model.safetensors of a folder; returns the shard of each tensor."""
    whole = folder / "model.safetensors"
    tensors = load_file(whole)
    listed = {
        name: f"model-{i % count + 1:05}-of-{count:05}.safetensors"
        for i, name in enumerate(sorted(tensors))
    }
    for file in {*listed.values()}:
        save_file({n: t for n, t in tensors.items() if listed[n] == file}, folder / file)
    write_index(folder, listed)
    whole.unlink()
    return listed


def write_index(folder: Path, listed: object) -> None:
    content = {"metadata": {"total_size": 1}, "weight_map": listed}
    (folder / INDEX).write_text(json.dumps(content))
