"""The check of --load. Every run that loads parameters imports this file, so the module
that reads language models is imported only for a data set of text."""

from nnmpi.data import Dataset
from nnmpi.options.config import Config
from nnmpi.parallel.checks import Checks


def check_vocabulary(config: Config, dataset: Dataset) -> None:
    """Raises ValueError if the data's tokenizer is not that of the saved model."""
    from nnmpi.addons.language.run import saved

    saved.check_vocabulary(config, dataset)


CHECKS = Checks(text=check_vocabulary)
