"""Options for training language models, such as --context and --tokenizer."""

from dataclasses import dataclass

from nnmpi.options import resume_rules as rules
from nnmpi.options.features import STEPS_TOGETHER, AddOnOptions, Feature
from nnmpi.options.groups import data_option, model_option, other_option
from nnmpi.options.value_forms import FROM_0_BELOW_1, FROM_1


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of language models, such as --dropout, --context and --tokenizer."""

    dropout: float = model_option(
        0.0, "dropout probability in gpt models; GPT-2 was trained with 0.1", FROM_0_BELOW_1
    )
    context: int = data_option(
        128, "number of tokens in a window of text", FROM_1, resume=rules.ANOTHER_MODEL
    )
    tokenizer: str | None = data_option(
        None,
        "tokenizer for a text: a folder with vocab.json and merges.txt (byte-level BPE), or a "
        "tokenizer.json; default: a token per character, or per byte if the text is not UTF-8",
        resume=rules.ANOTHER_MODEL,
    )
    sample_every: int | None = other_option(
        None, "print text of the model every so many steps", FROM_1
    )
    prompt: str | None = other_option(
        None,
        "with --sample-every: how the text begins; default: after <|endoftext|> or a line's end",
    )


ONE_POSITION = "a new token is one position, and cannot be cut along positions"

FEATURES = (
    Feature(
        "sample_every",
        relies_on=(STEPS_TOGETHER,),
        conflicts={
            "cp": ONE_POSITION,
            "sequence_parallel": ONE_POSITION,
            "layout": "a text is one sample, which ranks cannot share",
        },
    ),
    Feature("prompt", requires={"sample_every": "it is the beginning of a sample"}),
)

ADDED = AddOnOptions(Options, FEATURES)
