"""Gradient accumulation, clipping, and mixed precision with a GradScaler."""

import argparse

import torch
from torch import nn
from torch.cuda.amp import GradScaler, autocast
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accum-steps", default=4, type=int)
    parser.add_argument("--micro-batch", default=8, type=int)
    parser.add_argument("--clip", default=1.0, type=float)
    parser.add_argument("--amp", action="store_true")
    return parser.parse_args()


class AverageMeter:
    def __init__(self, name, fmt=":f"):
        self.name, self.fmt = name, fmt
        self.reset()

    def reset(self):
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

    def __str__(self):
        return ("{name} {val" + self.fmt + "} ({avg" + self.fmt + "})").format(**self.__dict__)


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        maxk = max(topk)
        batch_size = target.size(0)
        _, pred = output.topk(maxk, 1, True, True)
        pred = pred.t()
        correct = pred.eq(target.view(1, -1).expand_as(pred))
        res = []
        for k in topk:
            correct_k = correct[:k].reshape(-1).float().sum(0, keepdim=True)
            res.append(correct_k.mul_(100.0 / batch_size))
        return res


class MLP(nn.Module):
    def __init__(self, sizes, act=nn.ReLU):
        super().__init__()
        layers = []
        for a, b in zip(sizes[:-2], sizes[1:-1]):
            layers += [nn.Linear(a, b), nn.LayerNorm(b), act()]
        self.net = nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))

    def forward(self, x):
        return self.net(x)


def main():
    args = get_args()
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    use_amp = args.amp and device.type == "cuda"
    y = torch.randint(0, 6, (192,))
    x = torch.randn(6, 20)[y] + torch.randn(192, 20)
    loader = DataLoader(TensorDataset(x, y), batch_size=args.micro_batch, shuffle=True)
    model = MLP([20, 32, 32, 6]).to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, amsgrad=True)
    scaler = GradScaler(enabled=use_amp)
    losses, top1, top2 = (
        AverageMeter("Loss", ":.4e"),
        AverageMeter("Acc@1", ":6.2f"),
        AverageMeter("Acc@2", ":6.2f"),
    )
    for epoch in range(2):
        optimizer.zero_grad()
        for i, (inputs, targets) in enumerate(loader):
            inputs = inputs.to(device, non_blocking=True)
            targets = targets.to(device, non_blocking=True)
            with autocast(enabled=use_amp):
                output = model(inputs)
                loss = criterion(output, targets) / args.accum_steps
            scaler.scale(loss).backward()
            acc1, acc2 = accuracy(output, targets, topk=(1, 2))
            losses.update(loss.item() * args.accum_steps, inputs.size(0))
            top1.update(acc1[0].item(), inputs.size(0))
            top2.update(acc2[0].item(), inputs.size(0))
            if (i + 1) % args.accum_steps == 0 or (i + 1) == len(loader):
                scaler.unscale_(optimizer)
                total_norm = clip_grad_norm_(model.parameters(), args.clip)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad(set_to_none=True)
                print(
                    "  ".join(
                        [
                            f"[{epoch}][{i:3d}]",
                            f"norm {total_norm.item():.4f}",
                            str(losses),
                            str(top1),
                            str(top2),
                        ]
                    )
                )
    print("scale:", scaler.get_scale(), "state:", scaler.state_dict())


if __name__ == "__main__":
    main()
