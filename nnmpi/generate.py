"""The command `python -m nnmpi.generate`: text from a model that was saved, or from a GPT-2.

Exit status: 0 done, 1 failed, 2 unusable arguments, 130 stopped by Ctrl-C.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nnmpi import backend, blas, cli, native
from nnmpi.comm import Comm
from nnmpi.config import ABOVE_0, FROM_0, FROM_1, NUMBER_FROM_0, Config, Range, check_text
from nnmpi.data.tokenizer import Tokenizer
from nnmpi.nn.gpt2 import Sizes
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.discovery import chosen
from nnmpi.run.command import first_prints, on_ranks
from nnmpi.run.decoder import Decoder
from nnmpi.run.files import loading
from nnmpi.run.generation import generated, texts, tokenizer_for
from nnmpi.run.models import saved_sizes
from nnmpi.run.sampling import Sampling

PROGRAM = "nnmpi.generate"
TYPES = ("float32", "float64")
UP_TO_1 = Range("above 0 and at most 1", lambda p: ABOVE_0.has(p) and p <= 1)


def parser() -> argparse.ArgumentParser:
    """The flags of the command."""
    p = cli.Parser(
        prog=f"python -m {PROGRAM}",
        description="Generate text. Of a text longer than the positions of the model, the last "
        "half of them is kept, and computed again.",
        allow_abbrev=False,
    )

    def number(kind: Callable[[str], Any], within: Range) -> Callable[[str], Any]:
        def parsed(text: str) -> Any:
            value = kind(text)
            if not within.has(value):
                raise argparse.ArgumentTypeError(f"{text} must be {within.words}")
            return value

        parsed.__name__ = kind.__name__
        return parsed

    p.add_argument("--load", required=True, help="a file of --save, or a folder of GPT-2")
    p.add_argument("--prompt", required=True, metavar="TEXT", help="the beginning of the text")
    count, whole = number(int, FROM_1), number(int, FROM_0)
    p.add_argument("--tokens", type=count, default=200, help="to be generated (default 200)")
    p.add_argument(
        "--temperature",
        type=number(float, NUMBER_FROM_0),
        default=1.0,
        help="what scores are divided by; 0: always the best token (default 1)",
    )
    p.add_argument("--top-k", type=whole, default=0, help="draw from so many; 0: all (default 0)")
    p.add_argument(
        "--top-p",
        type=number(float, UP_TO_1),
        default=1.0,
        help="draw from the best that together have this probability (default 1)",
    )
    p.add_argument("--seed", type=whole, default=0, help="of the draws (default 0)")
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
    """Run the command and return its exit status."""
    remedy = "use more ranks, by --tp or --pp"
    return on_ranks(PROGRAM, lambda comm: _main(comm, arguments), remedy)


def _main(comm: Comm, arguments: Sequence[str] | None) -> int:
    with first_prints(comm):
        given = all_or_none(comm, lambda: parser().parse_args(arguments))
        try:
            for text in pieces(given, comm):
                print(text, end="", flush=True)
            print(flush=True)
        except (OSError, KeyboardInterrupt) as error:
            if comm.size > 1:  # the others wait for this rank
                comm.abort(reason_of(error))
            raise
    return 0


def reason_of(error: BaseException) -> str:
    """Why a rank goes no further."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return f"cannot write output: {error}"


def pieces(given: argparse.Namespace, comm: Comm) -> Iterator[str]:
    """The prompt, and the text behind it as it comes; every rank iterates."""
    blas.tune()
    native.check()
    blas.default_threads(blas.cores(len(comm.node())))

    def read() -> tuple[Sizes, Tokenizer, list[int]]:
        if comm.rank == comm.node()[0]:  # the file is read whole once per node
            loading.check_digest(given.load)
        sizes = saved_sizes(given.load)
        tokenizer = tokenizer_for(given.load, given.tokenizer, sizes)
        return sizes, tokenizer, encoded(given.prompt, tokenizer)

    for option in ("load", "prompt"):
        check_text(option, getattr(given, option))
    sizes, tokenizer, prompt = all_or_none(comm, read)
    on = chosen(comm, all_or_none(comm, lambda: backend.get(given.device)))
    decoder = Decoder(config_of(given, sizes), sizes, comm, on)
    how = Sampling(given.temperature, given.top_k, given.top_p, given.seed)
    yield given.prompt
    yield from texts(generated(decoder, prompt, given.tokens, how, tokenizer.size), tokenizer)
    decoder.close()


def encoded(prompt: str, tokenizer: Tokenizer) -> list[int]:
    """The tokens of the prompt."""
    try:
        prompt.encode()
        return [int(token) for token in tokenizer.encode(prompt)]
    except UnicodeEncodeError as error:
        raise ValueError(
            f"prompt: it is not UTF-8 at place {error.start:,}; give text in UTF-8"
        ) from None
    except ValueError as error:
        raise ValueError(f"prompt: {error}") from None


def config_of(given: argparse.Namespace, sizes: Sizes) -> Config:
    """The options that arrange the ranks."""
    names = ("load", "dtype", "device", "tp", "pp")
    return Config(model=sizes.model, **{name: getattr(given, name) for name in names})


if __name__ == "__main__":
    sys.exit(main())
