"""Tells the language of a made-up name by a character RNN, one name at a time."""

import random
import string

import torch
import torch.nn as nn

all_letters = string.ascii_letters + " .,;'"
n_letters = len(all_letters)
endings = {
    "Northern": ["sen", "berg", "sson", "lund", "vik"],
    "Southern": ["ini", "ello", "azzo", "etti", "ucci"],
    "Eastern": ["ov", "enko", "sky", "ich", "czyk"],
}
random.seed(3)
torch.manual_seed(3)
stems = ["And", "Bar", "Mar", "Pet", "Kol", "Ros", "Lin", "Tor", "Vel", "Dan"]
category_lines = {c: [stem + end for stem in stems for end in ends] for c, ends in endings.items()}
all_categories = list(category_lines)
n_categories = len(all_categories)


def letterToIndex(letter):
    return all_letters.find(letter)


def letterToTensor(letter):
    tensor = torch.zeros(1, n_letters)
    tensor[0][letterToIndex(letter)] = 1
    return tensor


def lineToTensor(line):
    tensor = torch.zeros(len(line), 1, n_letters)
    for li, letter in enumerate(line):
        tensor[li][0][letterToIndex(letter)] = 1
    return tensor


class RNN(nn.Module):
    def __init__(self, input_size, hidden_size, output_size):
        super(RNN, self).__init__()
        self.hidden_size = hidden_size
        self.i2h = nn.Linear(input_size, hidden_size)
        self.h2h = nn.Linear(hidden_size, hidden_size)
        self.h2o = nn.Linear(hidden_size, output_size)
        self.softmax = nn.LogSoftmax(dim=1)

    def forward(self, input, hidden):
        hidden = torch.tanh(self.i2h(input) + self.h2h(hidden))
        output = self.softmax(self.h2o(hidden))
        return output, hidden

    def initHidden(self):
        return torch.zeros(1, self.hidden_size)


def categoryFromOutput(output):
    top_n, top_i = output.topk(1)
    category_i = top_i[0].item()
    return all_categories[category_i], category_i


def randomTrainingExample():
    category = random.choice(all_categories)
    line = random.choice(category_lines[category])
    category_tensor = torch.tensor([all_categories.index(category)], dtype=torch.long)
    return category, line, category_tensor, lineToTensor(line)


rnn = RNN(n_letters, 32, n_categories)
criterion = nn.NLLLoss()
learning_rate = 0.05


def train(category_tensor, line_tensor):
    hidden = rnn.initHidden()
    rnn.zero_grad()
    for i in range(line_tensor.size()[0]):
        output, hidden = rnn(line_tensor[i], hidden)
    loss = criterion(output, category_tensor)
    loss.backward()
    for p in rnn.parameters():
        p.data.add_(p.grad.data, alpha=-learning_rate)
    return output, loss.item()


current_loss = 0
all_losses = []
for iter in range(1, 121):
    category, line, category_tensor, line_tensor = randomTrainingExample()
    output, loss = train(category_tensor, line_tensor)
    current_loss += loss
    if iter % 20 == 0:
        guess, guess_i = categoryFromOutput(output)
        correct = "yes" if guess == category else "no (%s)" % category
        print("%d %.4f %s / %s %s" % (iter, loss, line, guess, correct))
        all_losses.append(current_loss / 20)
        current_loss = 0

confusion = torch.zeros(n_categories, n_categories)
with torch.no_grad():
    for _ in range(30):
        category, line, category_tensor, line_tensor = randomTrainingExample()
        hidden = rnn.initHidden()
        for i in range(line_tensor.size()[0]):
            output, hidden = rnn(line_tensor[i], hidden)
        _, guess_i = categoryFromOutput(output)
        confusion[all_categories.index(category)][guess_i] += 1
for i in range(n_categories):
    denom = confusion[i].sum()
    if denom > 0:
        confusion[i] = confusion[i] / denom
print(["%.2f" % p for p in confusion.diag()])
print(["%.3f" % loss for loss in all_losses])
