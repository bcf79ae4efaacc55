"""The command `python -m nnmpi.generate`: generates text with a saved model, or with a GPT-2.

Exit status: 0 done, 1 failed, 2 unusable arguments, 130 stopped by Ctrl-C.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nnmpi.addons.language.data.tokenizer import Tokenizer, vocabulary_of
from nnmpi.addons.language.models.folders import Sizes
from nnmpi.addons.language.run.decoder import loaded
from nnmpi.addons.language.run.generation import (
    OPTIONS,
    Sampling,
    generated,
    texts,
    tokenizer_for,
    tokens_of_prompt,
)
from nnmpi.addons.language.run.saved import saved_sizes, saved_special_tokens
from nnmpi.arrays import backend, blas, native
from nnmpi.comm import Comm
from nnmpi.io.files import loading
from nnmpi.options import cli
from nnmpi.options.config import Config
from nnmpi.options.value_forms import FROM_1, Allowed, check_text
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.arrangement.cluster import common_backend
from nnmpi.run import rank_agreement
from nnmpi.run.command import rank_0_prints, run_on_ranks

TYPES = ("float32", "float64")


def parser() -> cli.Parser:
    """Returns the parser of the command line."""
    p = cli.Parser(
        "nnmpi.generate",
        description="Generate text. When a text fills all positions of the model, its last half "
        "is kept, and computed again.",
    )

    def number(kind: Callable[[str], Any], within: Allowed) -> Callable[[str], Any]:
        def parsed(text: str) -> Any:
            value = kind(text)
            if not within.has(value):
                raise argparse.ArgumentTypeError(f"{text} must be {within.words}")
            return value

        parsed.__name__ = kind.__name__
        return parsed

    p.add_argument("--load", required=True, help="a file of --save, or a folder of GPT-2 or Llama")
    p.add_argument(
        "--prompt",
        metavar="TEXT",
        help="the beginning of the text; default: the text begins after the bos_token_id of "
        "GPT-2's folder, else after <|endoftext|> if the tokenizer has it, else after a line break",
    )
    count = number(int, FROM_1)
    p.add_argument(
        "--tokens",
        type=count,
        default=200,
        help="the most tokens to generate; an eos_token_id ends the text (default 200)",
    )
    for name, default in Sampling()._asdict().items():
        within, text = OPTIONS[name]
        flag, has = f"--{name.replace('_', '-')}", number(type(default), within)
        p.add_argument(flag, type=has, default=default, help=f"{text} (default {default:g})")
    p.add_argument(
        "--tokenizer",
        default=None,
        help="a folder with vocab.json and merges.txt, or a tokenizer.json; default: the model's",
    )
    p.add_argument("--dtype", choices=TYPES, default=TYPES[0], help=f"(default {TYPES[0]})")
    p.add_argument("--device", choices=backend.DEVICES, default="cpu", help="(default cpu)")
    p.add_argument("--tp", type=count, default=1, help="tensor-parallel ranks (default 1)")
    p.add_argument("--pp", type=count, default=1, help="pipeline-parallel ranks (default 1)")
    return p


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    return run_on_ranks(parser(), command, arguments, "use more ranks, with --tp or --pp")


def command(comm: Comm, given: argparse.Namespace) -> int:
    """Prints the text as it is generated; every rank calls it."""
    with rank_0_prints(comm):
        try:
            for text in pieces(given, comm):
                print(text, end="", flush=True)
            print(flush=True)
        except OSError as error:
            if comm.size > 1:  # the others wait for this rank
                comm.abort(f"cannot write output: {error}")
            raise
    return 0


def pieces(given: argparse.Namespace, comm: Comm) -> Iterator[str]:
    """Yields the prompt, then the text in pieces. Every rank must iterate."""
    blas.tune()
    blas.default_threads(1)  # products of one row are too small for more

    def read() -> tuple[Sizes, Tokenizer, list[int], list[int]]:
        native.check()
        if comm.rank == comm.node()[0]:  # the file is read whole once per node
            loading.check_content(given.load)
        sizes = saved_sizes(given.load)
        tokenizer = tokenizer_for(given.load, given.tokenizer, sizes)
        begin, ends = saved_special_tokens(given.load, sizes)
        return sizes, tokenizer, tokens_of_prompt(given.prompt, tokenizer, begin), ends

    for option in ("load", "prompt"):
        if getattr(given, option) is not None:
            check_text(option, getattr(given, option))
    sizes, tokenizer, prompt, ends = all_or_none(comm, read)
    vocabulary = vocabulary_of(tokenizer.describe())
    facts = {"the sizes of the model": sizes, "the vocabulary": vocabulary, "the prompt": prompt}
    facts["the tokens that end a text"] = ends
    rank_agreement.check_given(comm, vars(given))
    rank_agreement.check_given(comm, facts, rank_agreement.FILES)
    rank_agreement.check_weights(comm, given.load)
    on = common_backend(comm, all_or_none(comm, lambda: backend.get(given.device)))
    arranging = {name: getattr(given, name) for name in ("load", "dtype", "device", "tp", "pp")}
    decoder = loaded(Config(model=sizes.model, **arranging), sizes, comm, on)
    how = Sampling(given.temperature, given.top_k, given.top_p, given.seed)
    yield given.prompt or ""
    tokens = generated(decoder, prompt, given.tokens, how, tokenizer.size, ends)
    yield from texts((token for token in tokens if token not in ends), tokenizer)
    decoder.close()
