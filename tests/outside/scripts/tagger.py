"""Tags words of sentences with a bidirectional GRU; padding does not count."""

import torch
import torch.nn as nn
import torch.optim as optim

training_data = [
    ("the small dog sees a bird".split(), "D A N V D N".split()),
    ("a bird sings".split(), "D N V".split()),
    ("the old farmer feeds the small horse".split(), "D A N V D A N".split()),
    ("she feeds it".split(), "P V P".split()),
    ("it sees the farmer and sings".split(), "P V D N C V".split()),
    ("the horse and the dog run".split(), "D N C D N V".split()),
    ("old dogs sleep".split(), "A N V".split()),
    ("she and the farmer sleep".split(), "P C D N V".split()),
]
word_to_ix = {"<pad>": 0, "<unk>": 1}
for sent, _tags in training_data:
    for word in sent:
        if word not in word_to_ix:
            word_to_ix[word] = len(word_to_ix)
tag_to_ix = {"D": 0, "N": 1, "V": 2, "A": 3, "P": 4, "C": 5}
ix_to_tag = {v: k for k, v in tag_to_ix.items()}
IGNORE = -100


def prepare_batch(data):
    length = max(len(sent) for sent, _ in data)
    words = torch.zeros(len(data), length, dtype=torch.long)
    tags = torch.full((len(data), length), IGNORE, dtype=torch.long)
    for i, (sent, tag) in enumerate(data):
        words[i, : len(sent)] = torch.tensor([word_to_ix.get(w, 1) for w in sent])
        tags[i, : len(tag)] = torch.tensor([tag_to_ix[t] for t in tag], dtype=torch.long)
    return words, tags


class GRUTagger(nn.Module):
    def __init__(self, vocab_size, tagset_size, embedding_dim=16, hidden_dim=16):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab_size, embedding_dim, padding_idx=0)
        self.gru = nn.GRU(
            embedding_dim,
            hidden_dim,
            num_layers=2,
            batch_first=True,
            dropout=0.1,
            bidirectional=True,
        )
        self.hidden2tag = nn.Sequential(
            nn.LayerNorm(2 * hidden_dim), nn.Dropout(0.1), nn.Linear(2 * hidden_dim, tagset_size)
        )
        for name, param in self.gru.named_parameters():
            if "weight_hh" in name:
                nn.init.orthogonal_(param)
            elif "bias" in name:
                nn.init.zeros_(param)

    def forward(self, sentence):
        embeds = self.word_embeddings(sentence)
        gru_out, _ = self.gru(embeds)
        return self.hidden2tag(gru_out)


torch.manual_seed(1)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
model = GRUTagger(len(word_to_ix), len(tag_to_ix)).to(device)
weight = torch.ones(len(tag_to_ix))
weight[tag_to_ix["C"]] = 2.0
loss_function = nn.CrossEntropyLoss(weight=weight, ignore_index=IGNORE, label_smoothing=0.05)
optimizer = optim.Adam(model.parameters(), lr=0.02)
scheduler = optim.lr_scheduler.MultiStepLR(optimizer, milestones=[10, 15], gamma=0.3)
for epoch in range(20):
    model.train()
    total, correct, count = 0.0, 0, 0
    for start in range(0, len(training_data), 4):
        words, tags = prepare_batch(training_data[start : start + 4])
        words, tags = words.to(device), tags.to(device)
        model.zero_grad()
        scores = model(words)
        loss = loss_function(scores.transpose(1, 2), tags)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0, norm_type=2)
        optimizer.step()
        total += loss.item()
        mask = tags != IGNORE
        correct += (scores.argmax(-1)[mask] == tags[mask]).sum().item()
        count += mask.sum().item()
    scheduler.step()
    if epoch % 5 == 4:
        print(f"epoch {epoch + 1}: loss {total / 2:.4f}, accuracy {correct / count:.3f}")

model.eval()
with torch.no_grad():
    inputs = torch.tensor([[word_to_ix.get(w, 1) for w in "the old bird sleeps".split()]])
    tag_scores = torch.log_softmax(model(inputs.to(device)), dim=-1)
    value, best = tag_scores.max(dim=-1)
    print([ix_to_tag[i] for i in best[0].tolist()], [round(v, 2) for v in value[0].tolist()])
