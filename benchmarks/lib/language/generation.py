"""Generation with a cache of keys and values, by nnmpi and by PyTorch, from the same weights."""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from lib.models import gpt

SIZES = (6, 6, 384)
WORDS, POSITIONS, PROMPT = 65, 256, 16
NEW = POSITIONS - PROMPT
"""Tokens that are generated; each is the best one."""


def main(rounds: str) -> None:
    """Print tokens a second of both, in each round."""
    import torch

    torch.set_num_threads(1)
    ours, model = _model()
    theirs = _torch_model(model)
    prompt = np.random.default_rng(0).integers(0, WORDS, PROMPT).tolist()
    both: list[Callable[[], list[int]]] = [lambda: ours(prompt), lambda: theirs(prompt)]
    texts, rates = [generate() for generate in both], []
    if texts[0] != texts[1]:
        sys.exit("nnmpi and PyTorch generate other tokens")
    for _ in range(int(rounds)):
        times = []
        for generate in both:
            began = time.process_time()
            generate()
            times.append(time.process_time() - began)
        rates.append([NEW / seconds for seconds in times])
    print(json.dumps(rates))


def _model() -> tuple[Callable[[list[int]], list[int]], Any]:
    """What generates by nnmpi, and its model."""
    from nnmpi import nn
    from nnmpi.addons.language.models.gpt2 import load_gpt2, save_gpt2
    from nnmpi.addons.language.run.decoder import loaded
    from nnmpi.addons.language.run.generation import Sampling, generated
    from nnmpi.addons.language.run.saved import saved_sizes
    from nnmpi.arrays import backend, blas
    from nnmpi.comm import comm_self
    from nnmpi.options.config import Config

    blas.tune()
    with tempfile.TemporaryDirectory() as folder:
        save_gpt2(nn.GPT(*SIZES, WORDS, POSITIONS), folder)
        sizes = saved_sizes(folder)
        decoder = loaded(Config(load=folder, model=sizes.model), sizes, comm_self(), backend.CPU)
        model = load_gpt2(folder)

    def generate(prompt: list[int]) -> list[int]:
        decoder.start()
        return [*generated(decoder, prompt, NEW, Sampling(0.0, 0, 1.0, 0), WORDS)]

    return generate, model


def _torch_model(model: Any) -> Callable[[list[int]], list[int]]:
    """What generates by PyTorch, eager, with scaled_dot_product_attention and a cache."""
    import torch
    from torch import nn

    (rows,) = gpt(nn, *SIZES, WORDS, POSITIONS)
    with torch.no_grad():
        for p, ours in zip(rows.parameters(), model.parameters(), strict=True):
            p.copy_(torch.from_numpy(np.array(ours.data)))
    layers, heads, width = SIZES
    cache = torch.empty(layers, 2, 1, heads, POSITIONS, width // heads)

    def scores(tokens: list[int], length: int) -> Any:
        new, end = len(tokens), length + len(tokens)
        x = rows.wte(torch.tensor([tokens])) + rows.wpe.weight[length:end]
        for block, kept in zip(rows.h, cache, strict=True):
            parts = block.c_attn(block.ln_1(x)).reshape(1, new, heads, 3, width // heads)
            q, kept[0, :, :, length:end], kept[1, :, :, length:end] = (
                parts[:, :, :, i].transpose(1, 2) for i in range(3)
            )
            keys, values = kept[:, :, :, :end]
            y = nn.functional.scaled_dot_product_attention(q, keys, values, is_causal=new > 1)
            x = x + block.c_proj(y.transpose(1, 2).reshape(1, new, width))
            x = x + block.down(block.gelu(block.up(block.ln_2(x))))
        return rows.ln_f(x[:, -1]) @ rows.wte.weight.T

    def generate(prompt: list[int]) -> list[int]:
        found, new, length = list[int](), prompt, 0
        with torch.inference_mode():
            for _ in range(NEW):
                found.append(int(scores(new, length).argmax()))
                length, new = length + len(new), found[-1:]
        return found

    return generate
