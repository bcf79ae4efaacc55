"""Options of texts that a model in training writes."""

from dataclasses import dataclass

from nnmpi.options.features import STEPS_TOGETHER, Feature, Part
from nnmpi.options.groups import other_option
from nnmpi.options.terms import FROM_1


@dataclass(frozen=True)
class Options:
    """Options of texts that a model in training writes."""

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

PART = Part(Options, FEATURES)
