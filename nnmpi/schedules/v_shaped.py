"""Pipeline schedules in which each rank has two stages, in the form of a V: one as the data goes
down through the ranks, and one as it comes back up.

    3 ranks     rank 0   0         5     inputs and losses
                rank 1     1     4
                rank 2       2 3         from 2 to 3 nothing is sent

Passes are written as F0, I1, ...: a kind, and 0 for the first stage of the rank or 1 for its
second. Each pass is for the next micro-batch of its kind and stage. Schedules are generated for as
many micro-batches as their pattern needs; then ops of micro-batches that do not exist are removed.
"""

from collections import Counter

from nnmpi.schedules.op import Kind, Op
from nnmpi.schedules.placement import in_v, stages_of


def zb_v(p: int, m: int, v: int = 2) -> list[list[Op]]:
    """The ZB-V schedule (zero bubble, 2024): no rank is idle between its first and last pass, if F,
    I and W take equally long.

    A rank makes F, I and W of both stages in turn; when no I is left, it makes the remaining W.
    """
    n = max(m, 2 * p - 1)

    def rank(r: int) -> str:
        k = p - r
        start = "F0 " * (2 * k - 1) + "F1 F0 " * r + "F1 I1 W1 " * k
        steady = "F0 I0 W0 F1 I1 W1 " * (n - p)
        return start + steady + "I0 I1 " * r + "I0 W0 " * k + "W1 " * r + "W0 " * r

    return [_passes(rank(r), p, m, r) for r in range(p)]


def dualpipe_v(p: int, m: int, v: int = 2) -> list[list[Op]]:
    """The DualPipeV schedule (DeepSeek, 2025): in the middle of a step each F is followed by a B of
    the rank's other stage, so that messages of one pass can be sent while the other pass computes.

    Backward passes are divided into I and W only at the start and at the end.
    """
    n = max(m, 2 * p)

    def rank(r: int) -> str:
        k, half = p - 1 - r, (r + 1) // 2
        start = "F0 " * (2 * k) + "F0 F1 " * (r + 1) + "I1 W1 F1 " * k
        middle = "F0 B1 F1 B0 " * (n - 2 * p + r + 1) + "B1 F1 B0 " * k
        end = "B1 B0 " * half + "B1 I0 " * (r % 2 == 0) + "I1 I0 " * half
        late = [f"W{(r - j) % 2 if j < r else 0} " for j in range(p)]  # in the order of their Is
        return start + middle + end + "I0 ".join(late[: k + 1]) + "".join(late[k + 1 :])

    return [_passes(rank(r), p, m, r) for r in range(p)]


def v_half(p: int, m: int, v: int = 2) -> list[list[Op]]:
    """The V-Half schedule (Qi et al., controllable memory, 2024): half the activations of 1F1B.

    A unit of time is that of one pass (F, I or W). Each micro-batch makes the same passes as the
    one before it, 6 units later. It takes 1 unit per rank on the way down and 2 on the way up, and
    so do its gradients. It waits at each turn, so that no rank has two passes at once. The passes W
    take the two units that are left of 6.

        3 ranks    rank 0   F0 .  .  .  .  .  .  .  F1 I1 .  W1 .  .  .  .  I0 .  .  W0
                   rank 1      F0 .  .  .  .  F1 .  .  .  I1 .  .  .  I0
                   rank 2         F0 .  F1 .  .  .  .  .  .  I1 I0

    A rank runs its passes in the order of these times, as early as messages allow.
    """
    turn, loss, back = (2, 1, 1) if p % 2 else (4, 1, 5)  # from a pass to the next at each turn

    def rank(r: int) -> list[Op]:
        first, second = stages_of(in_v(p, v), r)
        at = {
            Op(Kind.F, stage=first): r,
            Op(Kind.F, stage=second): (up := p - 1 + turn) + 2 * (p - 1 - r),
            Op(Kind.I, stage=second): (down := up + 2 * (p - 1) + loss) + r,
            Op(Kind.I, stage=first): down + p - 1 + back + 2 * (p - 1 - r),
        }
        for stage in (second, first):
            taken, time = {t % 6 for t in at.values()}, at[Op(Kind.I, stage=stage)]
            free = (t for t in range(time, time + 6) if t % 6 not in taken)
            at[Op(Kind.W, stage=stage)] = next(free)
        times = {op._replace(micro=i): t + 6 * i for op, t in at.items() for i in range(m)}
        return sorted(times, key=times.__getitem__)

    return [rank(r) for r in range(p)]


def _passes(words: str, p: int, m: int, rank: int) -> list[Op]:
    """Returns the passes of a rank, given as words such as F0 (kind and stage) separated by spaces;
    each is for the next micro-batch. Passes of micro-batches that do not exist are left out."""
    ops, stages, count = list[Op](), stages_of(in_v(p, 2), rank), Counter[tuple[str, int]]()
    for word in words.split():
        kind, stage = word[0], stages[int(word[1])]
        for part in "IW" if kind == "B" else kind:
            count[part, stage] += 1
        micro = count["I" if kind == "B" else kind, stage] - 1
        ops.append(Op(Kind(kind), micro, stage))
    return [op for op in ops if op.micro < m]
