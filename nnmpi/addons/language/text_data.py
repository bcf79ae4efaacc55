"""The tokenizer of a data set of text, and the check that it is that of a loaded model. Every run
that loads parameters imports this file, so it imports language models only for text."""

from typing import Any

from nnmpi.data import Dataset
from nnmpi.options.config import Config
from nnmpi.parallel.checks import Checks


def data_options(config: Config) -> dict[str, Any]:
    """Returns `nnmpi.data.load`'s arguments for windows of text: their length, and the tokenizer,
    that of --tokenizer or else of --load. It is None, for characters, if the model has none, or if
    only a part of the file is loaded."""
    tokenizer: Any = config.tokenizer
    is_text = config.data.partition(":")[0] == "text"
    if is_text and not tokenizer and config.load and not config.load_partial:
        from nnmpi.addons.language.run import saved

        tokenizer = saved.own_tokenizer(config.load)
    return {"context": config.context, "tokenizer": tokenizer}


def check_vocabulary(config: Config, dataset: Dataset) -> None:
    """Raises ValueError if the data's tokenizer is not that of the saved model."""
    from nnmpi.addons.language.run import saved

    saved.check_vocabulary(config, dataset)


CHECKS = Checks(text=check_vocabulary)
