"""Two ways of being parallel, side by side: mpirun -n 2 python examples/compare_strategies.py

Data parallelism sends the gradients of the whole model in each step; a pipeline sends the
activations of one layer. Both train as one rank would, so their losses agree.
"""

import nnmpi
from nnmpi.comm import world

STRATEGIES = {
    "data parallel": {"allreduce": "ring"},
    "pipeline": {"pp": 2, "micro_batches": 4},
}

comm = world()
if comm.size != 2:
    raise SystemExit(f"this example needs 2 ranks, got {comm.size}: mpirun -n 2 python ...")

for name, options in STRATEGIES.items():
    config = nnmpi.Config(
        model="mlp:64-512-512-10", data="digits", batch_size=128, steps=30, quiet=True, **options
    )
    trainer = nnmpi.Trainer(config, comm=comm)
    result = trainer.fit()
    if comm.rank == 0:
        print(f"{name}: loss {result['loss']:.6f}, {result['samples_per_second']:,.0f} samples/s")
