"""Models of --model that predict the next token, such as gpt2, gpt:4x4x128 and llama:4x4x128:2."""

import json

from nnmpi.addons.language.models import gpt, gpt2
from nnmpi.addons.language.models.folders import NAMED, LanguageModel, Sizes, format_of, sizes_named
from nnmpi.addons.language.models.llama import Llama
from nnmpi.addons.language.saved_folders import PUBLISHED
from nnmpi.data import Dataset
from nnmpi.data.inputs import is_index
from nnmpi.nn import Module
from nnmpi.options.config import Config
from nnmpi.options.quoting import quoted
from nnmpi.parallel.checks import Checks
from nnmpi.run.setup.models import ModelFacts, SizedModel


def model_of(config: Config, dataset: Dataset) -> Module:
    """Makes the gpt or llama LAYERSxHEADSxWIDTH for windows of tokens."""
    spec = config.model
    sizes = sizes_named(spec)
    if sizes is None:
        kind = spec.partition(":")[0]
        raise ValueError(
            f"model {quoted(spec)}: give a {kind} as {kind}:LAYERSxHEADSxWIDTH{NAMED[kind][2]}, "
            f"such as {kind}:4x4x128, numbers of at least 1 and below 10^9"
        )
    sizes = sizes._replace(vocabulary=dataset.classes, positions=_window(dataset, f"model {spec}"))
    model: Module = format_of(sizes).model(config.dropout)
    return model


def smallest_gpt2(config: Config, dataset: Dataset) -> Module:
    """Makes a model with the sizes of the smallest published GPT-2, for any data set."""
    model: Module = format_of(gpt2.GPT2).model(config.dropout)
    return model


GPT2 = SizedModel("gpt2", smallest_gpt2)
GPT = SizedModel("gpt:4x4x128", model_of)
LLAMA = SizedModel("llama:4x4x128:2", model_of)


def _window(dataset: Dataset, model: str) -> int:
    """Returns the tokens of a window; raises ValueError without windows."""
    x = dataset.train.x
    if isinstance(x, tuple | dict) or x.ndim != 2 or not is_index(x):
        raise ValueError(
            f"{model} takes windows of tokens, and data {dataset.name} has none: use "
            "--data text, text:FILE or tokens:FILE.npy"
        )
    return int(x.shape[1])


class LanguageFacts(ModelFacts):
    """A GPT's or Llama's sizes and files, stored in the model's file."""

    def metadata(self) -> dict[str, str]:
        """Returns the model's name for --model, and the JSON of its folder."""
        files = {**self.model.published}
        if isinstance(self.model, Llama):  # its tensors do not tell all of its sizes
            files.setdefault(gpt2.CONFIG, format_of(self.model.sizes).config({}))
        name = {"model": self.model.sizes.model}
        return name | ({PUBLISHED: json.dumps(files)} if files else {})

    def sizes(self) -> Sizes:
        """Returns the sizes from which the model can be made again."""
        sizes: Sizes = self.model.sizes
        return sizes

    def check(self, dataset: Dataset) -> None:
        """Raises ValueError if a window or the vocabulary is too large for the model."""
        sizes, window = self.sizes(), _window(dataset, "it")
        if window > sizes.positions:
            raise ValueError(
                f"it has {sizes.positions:,} positions, and data {dataset.name} "
                f"has windows of {window:,} tokens; give --context {sizes.positions} or less"
            )
        if dataset.classes > sizes.vocabulary:
            raise ValueError(
                f"it has a vocabulary of {sizes.vocabulary:,}, and data "
                f"{dataset.name} has {dataset.classes:,} tokens; use the tokenizer of the model"
            )


def check_dropout(config: Config, model: Module) -> None:
    """Raises ValueError if the option --dropout has no effect on this model."""
    if not (isinstance(model, gpt.GPT) and model.drop.p == config.dropout):
        raise ValueError(
            f"dropout {config.dropout} is an option of gpt models, others have nn.Dropout layers; "
            "leave it out"
        )


def check_stages(config: Config, model: Module) -> None:
    """Raises ValueError if stages need sequences of one length: no text is generated."""
    if config.pp > 1 and not isinstance(model, LanguageModel):
        raise ValueError(
            f"stages of {type(model).__name__} take sequences of one length, and generated text "
            f"grows: use pp 1 instead of {config.pp}, or an nn.GPT or nn.Llama"
        )


DROPOUT = Checks(model=check_dropout)
STAGES = Checks(model=check_stages)
