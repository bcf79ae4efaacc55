"""What the events of an epoch say of losses and metrics, and of text beside them."""

import math

import numpy as np

from nnmpi.data import Dataset
from nnmpi.data.inputs import arrays, is_index
from nnmpi.metrics import ACCURACY, Sums
from nnmpi.nn import CrossEntropyLoss
from nnmpi.nn.losses import ClassLoss
from nnmpi.parallel.step.objective import Criterion
from nnmpi.run.report.messages import Event


def measured(dataset: Dataset, loss: Criterion, train: Sums, test: Sums) -> Event:
    """Losses and metrics: the accuracy beside the loss, others under a key."""
    means = {name: np.asarray(value).tolist() for name, value in test.means.items()}
    is_number = isinstance(means.get(ACCURACY), float)
    accuracy = {ACCURACY: means.pop(ACCURACY)} if is_number else {}
    return {
        "loss": train.mean_loss,
        "test_loss": test.mean_loss,
        **accuracy,
        **_of_text(dataset, loss, test.mean_loss),
        **({"metrics": means} if means else {}),
    }


def _of_text(dataset: Dataset, loss: Criterion, nats: float) -> Event:
    """Perplexity, and bits per character or byte, of a mean loss a token in nats.

    perplexity = e^nats      bits = nats / ln 2 * tokens / characters of the held-out text
    """
    is_likelihood = (
        isinstance(loss, CrossEntropyLoss) and loss.weight is None and not loss.label_smoothing
    )
    if dataset.language is None or not is_likelihood:
        return {}
    bits = nats / math.log(2) * dataset.language.tokens_a_unit
    perplexity = math.exp(nats) if nats < 700 else math.inf
    return {"perplexity": perplexity, f"bits_per_{dataset.language.unit}": bits}


def counts_tokens(dataset: Dataset, loss: Criterion) -> bool:
    """Whether what the loss is divided by are tokens: labels of the positions of sequences."""
    y = dataset.train.y
    is_counted = isinstance(loss, ClassLoss) and loss.weight is None
    return is_counted and y.ndim == 2 and any(map(is_index, arrays(dataset.train.x)))
