"""Graph convolutions on a graph of communities, with messages added by index_add_."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parameter import Parameter

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=42)
parser.add_argument("--epochs", type=int, default=30)
parser.add_argument("--lr", type=float, default=0.02)
parser.add_argument("--weight_decay", type=float, default=5e-4)
parser.add_argument("--hidden", type=int, default=16)
parser.add_argument("--dropout", type=float, default=0.5)


def make_graph(n, n_class, n_feat):
    """Edges are likely within a community, and rare between two."""
    labels = torch.arange(n) % n_class
    same = labels[:, None] == labels[None, :]
    prob = torch.where(same, 0.25, 0.02)
    adj = torch.triu(torch.rand(n, n) < prob, diagonal=1)
    edge_index = adj.nonzero(as_tuple=False).t().contiguous()
    edge_index = torch.cat([edge_index, edge_index.flip(0)], dim=1)
    features = torch.randn(n, n_feat) + F.one_hot(labels, n_feat).float()
    return features, edge_index, labels


def gcn_norm(edge_index, num_nodes):
    loops = torch.arange(num_nodes).repeat(2, 1)
    edge_index = torch.cat([edge_index, loops], dim=1)
    row, col = edge_index
    deg = torch.zeros(num_nodes).scatter_add_(0, col, torch.ones(col.size(0)))
    deg_inv_sqrt = deg.pow(-0.5)
    deg_inv_sqrt[deg_inv_sqrt == float("inf")] = 0
    return edge_index, deg_inv_sqrt[row] * deg_inv_sqrt[col]


class GraphConvolution(nn.Module):
    def __init__(self, in_features, out_features, bias=True):
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = Parameter(torch.FloatTensor(in_features, out_features))
        if bias:
            self.bias = Parameter(torch.FloatTensor(out_features))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self):
        stdv = 1.0 / self.weight.size(1) ** 0.5
        self.weight.data.uniform_(-stdv, stdv)
        if self.bias is not None:
            self.bias.data.uniform_(-stdv, stdv)

    def forward(self, x, edge_index, norm):
        row, col = edge_index
        support = torch.mm(x, self.weight)
        messages = support.index_select(0, row) * norm.view(-1, 1)
        out = torch.zeros_like(support).index_add_(0, col, messages)
        return out + self.bias if self.bias is not None else out

    def __repr__(self):
        return f"{self.__class__.__name__} ({self.in_features} -> {self.out_features})"


class GCN(nn.Module):
    def __init__(self, nfeat, nhid, nclass, dropout):
        super().__init__()
        self.gc1 = GraphConvolution(nfeat, nhid)
        self.gc2 = GraphConvolution(nhid, nclass)
        self.dropout = dropout

    def forward(self, x, edge_index, norm):
        x = F.relu(self.gc1(x, edge_index, norm))
        x = F.dropout(x, self.dropout, training=self.training)
        x = self.gc2(x, edge_index, norm)
        return F.log_softmax(x, dim=1)


def accuracy(output, labels):
    preds = output.max(1)[1].type_as(labels)
    correct = preds.eq(labels).double()
    return correct.sum() / len(labels)


def main():
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    features, edge_index, labels = make_graph(80, 4, 12)
    edge_index, norm = gcn_norm(edge_index, features.size(0))
    perm = torch.randperm(len(labels))
    idx_train, idx_val, idx_test = perm[:24], perm[24:44], perm[44:]
    model = GCN(features.shape[1], args.hidden, labels.max().item() + 1, args.dropout)
    print(model.gc1, "edges:", edge_index.size(1))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    for epoch in range(args.epochs):
        model.train()
        optimizer.zero_grad()
        output = model(features, edge_index, norm)
        loss_train = F.nll_loss(output[idx_train], labels[idx_train])
        loss_train.backward()
        optimizer.step()
        if (epoch + 1) % 10 == 0:
            model.eval()
            with torch.no_grad():
                output = model(features, edge_index, norm)
            loss_val = F.nll_loss(output[idx_val], labels[idx_val])
            print(
                "Epoch: {:04d}".format(epoch + 1),
                "loss_train: {:.4f}".format(loss_train.item()),
                "loss_val: {:.4f}".format(loss_val.item()),
                "acc_val: {:.4f}".format(accuracy(output[idx_val], labels[idx_val]).item()),
            )
    print("Test accuracy= {:.3f}".format(accuracy(output[idx_test], labels[idx_test])))


if __name__ == "__main__":
    main()
