"""Ranks that read different texts are an error, also of the commands that need no training."""

from pathlib import Path

from helpers.mpijob import run

import nnmpi
from nnmpi import nn
from nnmpi.addons.language.data.tokenizer import CharTokenizer

COMMANDS = """
import os, sys
from nnmpi import train
from nnmpi.addons.language import tokenize_command as tokenize
from nnmpi.comm import world
from nnmpi.addons.language.run import generate_command
os.chdir(os.path.join(sys.argv[1], str(world().rank)))
model = ["--load", "m.safetensors", "--tp", "2"]
found = [
    tokenize.main(["text", "--out", "../tokens.npy"]),
    generate_command.main([*model, "--prompt", "abc"]),
    train.main([*model, "--data", "text:../same", "--context", "4", "--model", "gpt:1x2x8"]),
]
print(found, flush=True)
"""


def test_commands_compare_what_ranks_read(tmp_path: Path) -> None:
    """Each in a directory of its own, with other files of the same names and sizes."""
    about = {"model": "gpt:1x2x8", "tokenizer": CharTokenizer("abc").describe()}
    (tmp_path / "same").write_text("abc" * 50)
    for rank, text in enumerate(("abc" * 99, "abc" * 98 + "bca")):
        (tmp_path / str(rank)).mkdir()
        (tmp_path / str(rank) / "text").write_text(text)
        model = nn.GPT(1, 2, 8, 3, 4)
        model.wte.weight.data[...] += rank
        nnmpi.save(model.state_dict(), tmp_path / str(rank) / "m.safetensors", about)
    found = run(2, "-c", COMMANDS, tmp_path, timeout=100)
    assert sorted(found.out.splitlines()) == ["[0, 0, 0]", "[2, 2, 2]"], found.err
    for what in ("the text text", "--load m.safetensors"):
        assert f"rank 1 differs from rank 0 in {what}; let all ranks read" in found.err
    assert not (tmp_path / "tokens.npy").exists()
