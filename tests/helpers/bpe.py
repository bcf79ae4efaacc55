"""A small byte-level BPE for tests, and texts that are hard for it."""

import random
from pathlib import Path

import pytest

SAMPLE = (
    "It's the first day, and they'll say they've seen 1234 größere Häuser.\n"
    "数据 データ 😀😀 naïve café — don't   stop\r\n\r\n\tend <|endoftext|> of it\u3000\u00a0 x\n"
)

PARTS = (
    *(
        "a",
        "b",
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t",
        "'s",
        "'ll",
        "1",
        "23",
        "!",
        ".\n",
        "é",
        "数",
        "the",
    ),
    *("\u3000", "\u2003", "\u00a0", "😀", "\x85", "\x1c", "\x00", "\u200b", "<|endoftext|>"),
    *("\u2028", "\u1680", "\u180e", "\u0301", "ß", "¼", "٣"),
)


def hard_text(seed: int, n: int = 60) -> str:
    """Characters that a regular expression over Unicode treats in different ways."""
    rng = random.Random(seed)
    return "".join(rng.choice(PARTS) for _ in range(n))


def tokenizers():
    """The library; a test that needs it is skipped without it."""
    return pytest.importorskip("tokenizers", reason="needs the package tokenizers")


def trained(folder: Path, size: int = 400) -> Path:
    """A folder with vocab.json and merges.txt of a small vocabulary, and tokenizer.json of it."""
    made = tokenizers().ByteLevelBPETokenizer()
    texts = [SAMPLE * 20, *(hard_text(i) for i in range(50))]
    made.train_from_iterator(texts, size, special_tokens=["<|endoftext|>"], show_progress=False)
    folder.mkdir(exist_ok=True)
    made.save_model(str(folder))
    (folder / "one").mkdir(exist_ok=True)
    made.save(str(folder / "one" / "tokenizer.json"))
    return folder
