"""What events say of a text whose tokens stand for several characters."""

import math
from pathlib import Path

import numpy as np
import pytest
from helpers.bpe import SAMPLE, trained

from nnmpi import Config, Trainer, data, nn, tensor
from nnmpi.addons.language.data.tokenizer import tokenizer_of


def test_bits_per_character_of_a_tokenizer(tmp_path: Path) -> None:
    """A model that knows nothing needs log2(size) bits a token, fewer a character."""
    path = tmp_path / "text"
    path.write_text(SAMPLE * 60)
    given = data.load(f"text:{path}", context=10, tokenizer=str(trained(tmp_path / "bpe")))
    ids = tokenizer_of(given.language.tokenizer).encode(SAMPLE * 60)
    held_out = ids[len(ids) - len(ids) // 10 :]
    text = tokenizer_of(given.language.tokenizer).decode(held_out)

    class Nothing(nn.Module):
        def __init__(self) -> None:
            self.scale = nn.Parameter(np.zeros(given.classes))

        def forward(self, x):
            ones = tensor(np.ones((*x.shape, 1), "float32"))
            return (ones * self.scale).transpose(0, 2, 1)

    config = Config(steps=1, lr=1e-12, quiet=True, batch_size=64)
    event = Trainer(config, Nothing, given).fit()
    want = math.log2(given.classes) * len(held_out) / len(text.lstrip("\ufffd"))
    assert event["bits_per_character"] == pytest.approx(want, rel=1e-3)
    assert event["perplexity"] == pytest.approx(given.classes, rel=1e-4)
