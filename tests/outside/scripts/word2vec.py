"""Skip-gram word vectors with negative sampling."""

from collections import Counter

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

corpus = (
    "king rules the land and queen rules the land while farmer works the field "
    "king wears a crown and queen wears a crown while farmer wears a hat "
    "dog runs in the field and horse runs in the field while king sits in the hall"
).split() * 3


class SkipGramDataset(Dataset):
    def __init__(self, words, window=2):
        counts = Counter(words)
        self.vocab = sorted(counts, key=lambda w: (-counts[w], w))
        self.word2idx = {w: i for i, w in enumerate(self.vocab)}
        freq = np.array([counts[w] for w in self.vocab], dtype=np.float32)
        self.noise = torch.from_numpy(freq**0.75 / (freq**0.75).sum())
        ids = [self.word2idx[w] for w in words]
        self.pairs = []
        for i, center in enumerate(ids):
            for j in range(max(0, i - window), min(len(ids), i + window + 1)):
                if i != j:
                    self.pairs.append((center, ids[j]))

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, idx):
        return self.pairs[idx]


class SkipGramNeg(nn.Module):
    def __init__(self, vocab_size, embedding_dim, noise_dist):
        super().__init__()
        self.noise_dist = noise_dist
        self.u_embeddings = nn.Embedding(vocab_size, embedding_dim)
        self.v_embeddings = nn.Embedding(vocab_size, embedding_dim)
        bound = 0.5 / embedding_dim
        self.u_embeddings.weight.data.uniform_(-bound, bound)
        self.v_embeddings.weight.data.zero_()

    def forward(self, center, context, n_neg=5):
        batch = center.shape[0]
        noise = torch.multinomial(self.noise_dist, batch * n_neg, replacement=True)
        noise = noise.view(batch, n_neg).to(center.device)
        u = self.u_embeddings(center)
        v = self.v_embeddings(context)
        score = torch.sum(torch.mul(u, v), dim=1)
        score = torch.clamp(score, max=10, min=-10)
        neg = torch.bmm(self.v_embeddings(noise), u.unsqueeze(2)).squeeze(2)
        neg = torch.clamp(neg, max=10, min=-10)
        return -(F.logsigmoid(score) + F.logsigmoid(-neg).sum(1)).mean()


def nearest(embeddings, dataset, word, k=3):
    norm = F.normalize(embeddings, p=2, dim=1)
    sims = norm @ norm[dataset.word2idx[word]]
    values, indices = sims.topk(k + 1)
    return [(dataset.vocab[i], round(v, 3)) for v, i in zip(values.tolist(), indices.tolist())][1:]


torch.manual_seed(42)
device = "cuda" if torch.cuda.is_available() else "cpu"
dataset = SkipGramDataset(corpus)
loader = DataLoader(dataset, batch_size=64, shuffle=True, drop_last=True, num_workers=0)
model = SkipGramNeg(len(dataset.vocab), 16, dataset.noise).to(device)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.3)
for epoch in range(1, 6):
    total = 0.0
    for center, context in loader:
        loss = model(center.to(device), context.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch}: loss {total / len(loader):.4f}")
print(
    len(dataset.vocab),
    "words; nearest to king:",
    nearest(model.u_embeddings.weight.data, dataset, "king"),
)
weights = model.u_embeddings.weight.detach().cpu().numpy()
print("mean norm %.3f" % np.linalg.norm(weights, axis=1).mean())
