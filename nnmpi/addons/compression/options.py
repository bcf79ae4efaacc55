"""The option --compress, by which ranks send compressed gradients."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from nnmpi.options import user_code
from nnmpi.options.features import ALL_REDUCE, EXACT_SUMS, WHOLE_STATE, AddOnOptions, Feature
from nnmpi.options.groups import reduce_option
from nnmpi.options.quoting import quoted
from nnmpi.options.resume_rules import ResumeEffect, ResumeRule


class Compression(NamedTuple):
    """The parsed value of --compress: the name of a compression method (or package.module:NAME),
    and the number after it, which is the fraction for topk and the rank for powersgd."""

    name: str
    number: float = 0.0


CODECS: Mapping[str, Callable[[str], float]] = {
    "topk": float,
    "sign": float,
    "powersgd": int,
    "int8": float,
}
"""By codec, the type of its number; only topk and powersgd have one."""


def compression(spec: str) -> Compression:
    """Parses `topk:FRACTION`, `sign`, `powersgd:RANK`, `int8` or `package.module:NAME`."""
    name, colon, text = spec.partition(":")
    if name not in CODECS and user_code.is_named(spec):
        return Compression(spec)
    try:
        parse = CODECS[name]
        number = parse(text) if colon else 0
        if not {"topk": 0 < number <= 1, "powersgd": number >= 1}.get(name, not colon):
            raise ValueError
    except (KeyError, ValueError):
        raise ValueError(
            f"{quoted(spec)} must be topk:FRACTION, above 0 and at most 1, sign, powersgd:RANK, at "
            "least 1, int8 or package.module:NAME"
        ) from None
    return Compression(name, number)


REST = ResumeRule(ResumeEffect.WARNED, "other parts of gradients are sent from here on")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The option --compress, which names the method by which gradients are compressed before they
    are sent."""

    compress: str | None = reduce_option(
        None,
        "send less of gradients, and the rest in later steps: topk:FRACTION of the entries, "
        "sign (1 bit), powersgd:RANK (factors of matrices), int8 or package.module:CODEC",
        custom=True,
        form=compression,
        resume=REST,
    )


FEATURES = (
    Feature(
        "compress",
        relies_on=(EXACT_SUMS, ALL_REDUCE, WHOLE_STATE),
        breaks={EXACT_SUMS: "each rank keeps a part of its gradient for later steps"},
        conflicts={
            "dtype float16": "what is kept would have the loss scale of its step",
            "allreduce in memory": "sums in memory of a node send nothing",
            "nccl": "NCCL adds up numbers, and compressed gradients are bytes",
        },
    ),
)

ADDED = AddOnOptions(Options, FEATURES)
