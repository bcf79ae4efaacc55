"""Learns to reverse and shift sequences with a GRU encoder and an attention decoder."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

SOS_token, EOS_token = 0, 1
MAX_LENGTH, VOCAB, HIDDEN = 6, 12, 24
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class EncoderRNN(nn.Module):
    def __init__(self, input_size, hidden_size, dropout_p=0.1):
        super().__init__()
        self.hidden_size = hidden_size
        self.embedding = nn.Embedding(input_size, hidden_size)
        self.gru = nn.GRU(hidden_size, hidden_size, batch_first=True)
        self.dropout = nn.Dropout(dropout_p)

    def forward(self, input):
        embedded = self.dropout(self.embedding(input))
        output, hidden = self.gru(embedded)
        return output, hidden


class BahdanauAttention(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.Wa = nn.Linear(hidden_size, hidden_size)
        self.Ua = nn.Linear(hidden_size, hidden_size)
        self.Va = nn.Linear(hidden_size, 1)

    def forward(self, query, keys):
        scores = self.Va(torch.tanh(self.Wa(query) + self.Ua(keys)))
        scores = scores.squeeze(2).unsqueeze(1)
        weights = F.softmax(scores, dim=-1)
        return torch.bmm(weights, keys), weights


class AttnDecoderRNN(nn.Module):
    def __init__(self, hidden_size, output_size, dropout_p=0.1):
        super().__init__()
        self.embedding = nn.Embedding(output_size, hidden_size)
        self.attention = BahdanauAttention(hidden_size)
        self.gru = nn.GRU(2 * hidden_size, hidden_size, batch_first=True)
        self.out = nn.Linear(hidden_size, output_size)
        self.dropout = nn.Dropout(dropout_p)

    def forward(self, encoder_outputs, encoder_hidden, target_tensor=None):
        batch_size = encoder_outputs.size(0)
        decoder_input = torch.empty(batch_size, 1, dtype=torch.long, device=device)
        decoder_input = decoder_input.fill_(SOS_token)
        decoder_hidden = encoder_hidden
        outputs, attentions = [], []
        for i in range(MAX_LENGTH):
            output, decoder_hidden, weights = self.forward_step(
                decoder_input, decoder_hidden, encoder_outputs
            )
            outputs.append(output)
            attentions.append(weights)
            if target_tensor is not None:
                decoder_input = target_tensor[:, i].unsqueeze(1)
            else:
                _, topi = output.topk(1)
                decoder_input = topi.squeeze(-1).detach()
        outputs = F.log_softmax(torch.cat(outputs, dim=1), dim=-1)
        return outputs, decoder_hidden, torch.cat(attentions, dim=1)

    def forward_step(self, input, hidden, encoder_outputs):
        embedded = self.dropout(self.embedding(input))
        query = hidden.permute(1, 0, 2)
        context, weights = self.attention(query, encoder_outputs)
        input_gru = torch.cat((embedded, context), dim=2)
        output, hidden = self.gru(input_gru, hidden)
        return self.out(output), hidden, weights


def make_pairs(n):
    pairs = []
    for _ in range(n):
        words = [random.randint(2, VOCAB - 1) for _ in range(random.randint(2, MAX_LENGTH - 1))]
        pairs.append((words, [2 + (w - 1) % (VOCAB - 2) for w in reversed(words)]))
    return pairs


def get_dataloader(pairs, batch_size):
    input_ids = torch.zeros((len(pairs), MAX_LENGTH), dtype=torch.int32)
    target_ids = torch.zeros((len(pairs), MAX_LENGTH), dtype=torch.int32)
    for i, (inp, tgt) in enumerate(pairs):
        inp, tgt = [*inp, EOS_token], [*tgt, EOS_token]
        input_ids[i, : len(inp)] = torch.tensor(inp)
        target_ids[i, : len(tgt)] = torch.tensor(tgt)
    data = TensorDataset(input_ids.long().to(device), target_ids.long().to(device))
    return DataLoader(data, sampler=RandomSampler(data), batch_size=batch_size)


def train_epoch(dataloader, encoder, decoder, enc_opt, dec_opt, criterion, teacher_forcing):
    total_loss = 0
    for input_tensor, target_tensor in dataloader:
        enc_opt.zero_grad()
        dec_opt.zero_grad()
        encoder_outputs, encoder_hidden = encoder(input_tensor)
        use_teacher = random.random() < teacher_forcing
        outputs, _, _ = decoder(
            encoder_outputs, encoder_hidden, target_tensor if use_teacher else None
        )
        loss = criterion(outputs.view(-1, outputs.size(-1)), target_tensor.view(-1))
        loss.backward()
        enc_opt.step()
        dec_opt.step()
        total_loss += loss.item()
    return total_loss / len(dataloader)


random.seed(4)
torch.manual_seed(4)
dataloader = get_dataloader(make_pairs(96), 16)
encoder = EncoderRNN(VOCAB, HIDDEN).to(device)
decoder = AttnDecoderRNN(HIDDEN, VOCAB).to(device)
encoder_optimizer = optim.Adam(encoder.parameters(), lr=0.01)
decoder_optimizer = optim.Adam(decoder.parameters(), lr=0.01)
criterion = nn.NLLLoss()
for epoch in range(1, 6):
    loss = train_epoch(
        dataloader, encoder, decoder, encoder_optimizer, decoder_optimizer, criterion, 0.7
    )
    print(f"epoch {epoch} average loss {loss:.4f}")

encoder.eval()
decoder.eval()
with torch.no_grad():
    inputs, targets = dataloader.dataset[:3]
    outputs, _, attn = decoder(*encoder(inputs))
    _, topi = outputs.topk(1)
    print("attention", tuple(attn.shape), "sums to", f"{attn.sum(-1).mean().item():.3f}")
    accuracy = (topi.squeeze(-1) == targets).float().mean()
    print(f"accuracy of {len(inputs)} sequences: {accuracy.item():.2f}")
