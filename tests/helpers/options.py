"""A value of each option of a run that is not its default."""

from dataclasses import Field
from typing import Any

from nnmpi.options.option import kind_of

TEXTS = {
    "logger": "tensorboard:runs",
    "order": "pp,tp,dp",
    "layout": "batch:dp,channels:tp,0=column",
    "lr_schedule": "warmup:5+cosine",
    "jitter": "0.5:2",
    "slow_rank": "0:2",
    "augment": "crop:4+flip",
    "memory": "1kB",
    "compress": "sign",
}
"""Of options that only some texts fit."""


def another(option: "Field[Any]") -> Any:
    kind, default, choices = kind_of(option), option.default, option.metadata["choices"]
    if choices:
        return next((choice for choice in choices if choice != default), default)
    if kind is bool:
        return not default
    if kind is str:
        return TEXTS.get(option.name, "7")
    return (default or 1) + 1 if kind is int else (default or 1) / 2
