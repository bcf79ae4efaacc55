"""Small language models of the layers of transformers, besides nn.GPT."""

from typing import Any

from nnmpi import nn
from nnmpi.nn import initial

WIDTH, HEADS = 20, 5  # which do not divide by 2, 3 or 4


class Encoder(nn.Module):
    """Encoder layers under PyTorch's names, some with dropout; no token looks at tokens 0."""

    def __init__(self, vocabulary: int, positions: int) -> None:
        self.embed = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.PositionalEmbedding(positions, WIDTH)
        first = nn.TransformerEncoderLayer(WIDTH, HEADS, 14, 0.1, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(first, 2, nn.RMSNorm(WIDTH))
        self.last = nn.TransformerEncoderLayer(WIDTH, 2, 14, 0, batch_first=True, norm_first=True)
        self.head, self.scores = nn.Linear(WIDTH, vocabulary), nn.ChannelsFirst()

    def forward(self, tokens: Any) -> Any:
        hidden = tokens == 0
        x = self.encoder(self.positions(self.embed(tokens)), src_key_padding_mask=hidden)
        return self.scores(self.head(self.last(x)))


class Residual(nn.Module):
    """x + layers(x)."""

    def __init__(self, *layers: nn.Module) -> None:
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return x + self.layers(x)


class Decoder(nn.Module):
    """Causal blocks in the form of GPT-2's; the head has the weight of the embedding."""

    def __init__(
        self,
        vocabulary: int,
        positions: int,
        layers: int = 2,
        heads: int = HEADS,
        width: int = WIDTH,
        dropout: float = 0.1,
    ) -> None:
        self.embed = nn.Embedding(vocabulary, width)
        self.embed.weight = nn.Parameter.lazy((vocabulary, width), initial.normal(0.02))
        self.positions, self.drop = nn.PositionalEmbedding(positions, width), nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(_block(heads, width, dropout) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight
        self.scores = nn.ChannelsFirst()

    def forward(self, tokens: Any) -> Any:
        x = self.blocks(self.drop(self.positions(self.embed(tokens))))
        return self.scores(self.head(self.norm(x)))


def _block(heads: int, width: int, dropout: float) -> nn.Sequential:
    attend = nn.SelfAttention(heads, is_causal=True, dropout=dropout)
    around = nn.Linear(width, 3 * width), attend, nn.Linear(width, width)
    within = nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)
    return nn.Sequential(
        *(
            Residual(nn.LayerNorm(width), *layers, nn.Dropout(dropout))
            for layers in (around, within)
        )
    )


def rotary(vocabulary: int, positions: int) -> nn.Module:
    """Blocks in the form of Llama's: RMSNorm, no biases, rotary positions; a causal model."""

    def block() -> tuple[nn.Module, ...]:
        attend = nn.SelfAttention(HEADS, is_causal=True, dropout=0.1, rotary=100.0)
        inside = nn.Linear(WIDTH, 3 * WIDTH, bias=False), attend
        return (
            Residual(nn.RMSNorm(WIDTH, 1e-6), *inside, nn.Linear(WIDTH, WIDTH, bias=False)),
            Residual(nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 31), nn.SiLU(), nn.Linear(31, WIDTH)),
        )

    head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, vocabulary, bias=False), nn.ChannelsFirst()
    return nn.Sequential(nn.Embedding(vocabulary, WIDTH), *block(), *block(), *head)


def mixture(vocabulary: int, positions: int) -> nn.Module:
    """Layers of each position alone around experts and branches, which take whole samples; ranks
    along tp have as many parameters as no other of them."""
    first = nn.Linear(WIDTH, 7), nn.Tanh(), nn.Linear(7, WIDTH, bias=False)
    branches = {"deep": nn.Sequential(*first), "flat": nn.Linear(WIDTH, WIDTH, bias=False)}
    return nn.Sequential(
        *(nn.Embedding(vocabulary, WIDTH), nn.PositionalEmbedding(positions, WIDTH)),
        *(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 31), nn.GELU(), nn.Linear(31, WIDTH)),
        Residual(nn.MixtureOfExperts(WIDTH, 10, 5, capacity_factor=0.8, auxiliary=0.1)),
        *(nn.Branches(branches), nn.Linear(WIDTH, 31), nn.SiLU(), nn.Linear(31, WIDTH)),
        *(nn.RMSNorm(WIDTH), nn.Dropout(0.1), nn.Linear(WIDTH, vocabulary), nn.ChannelsFirst()),
    )


def _with_experts(
    vocabulary: int, positions: int, first: nn.Module, second: nn.Module
) -> nn.Sequential:
    """Attention, and two mixtures of experts with layers of each position alone between them."""
    attend = nn.Linear(WIDTH, 3 * WIDTH), nn.SelfAttention(HEADS, is_causal=True)
    return nn.Sequential(
        *(nn.Embedding(vocabulary, WIDTH), nn.PositionalEmbedding(positions, WIDTH)),
        Residual(nn.LayerNorm(WIDTH), *attend, nn.Linear(WIDTH, WIDTH)),
        *(Residual(nn.LayerNorm(WIDTH), first, nn.Dropout(0.1)), nn.RMSNorm(WIDTH)),
        *(Residual(second), nn.RMSNorm(WIDTH), nn.Linear(WIDTH, vocabulary), nn.ChannelsFirst()),
    )


def routed(vocabulary: int, positions: int) -> nn.Module:
    """Two of five experts and one of four, which have room for fewer tokens than choose them."""
    first = nn.MixtureOfExperts(WIDTH, 10, 5, 2, capacity_factor=0.8, auxiliary=0.1)
    second = nn.MixtureOfExperts(WIDTH, 6, 4, 1, 0.7, 0.0, "relu")
    return _with_experts(vocabulary, positions, first, second)


def everywhere(vocabulary: int, positions: int) -> nn.Module:
    """All tokens go to all experts."""
    first = nn.MixtureOfExperts(WIDTH, 10, 5, 5, capacity_factor=1.0, auxiliary=0.1)
    second = nn.MixtureOfExperts(WIDTH, 6, 4, 4, 1.0, 0.0, "relu")
    return _with_experts(vocabulary, positions, first, second)
