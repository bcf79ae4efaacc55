"""Checks and experiments: comparison with one rank, bit-equal runs, and slow ranks."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.addons.checks",),
    rows={
        "options": {"checks": "nnmpi.addons.checks.options:ADDED"},
        "texts": {
            "reproducible": "nnmpi.addons.checks.text:REPRODUCIBLE",
            "slow_rank": "nnmpi.addons.checks.text:SLOW_RANK",
            "jitter": "nnmpi.addons.checks.text:JITTER",
            "verify": "nnmpi.addons.checks.text:VERIFY",
            "largest_differences": "nnmpi.addons.checks.text:LARGEST",
        },
        "checks": {
            "reproducible": "nnmpi.addons.checks.reproducible:CHECKS",
            "slow_rank": "nnmpi.addons.checks.slow_ranks:CHECKS",
            "jitter": "nnmpi.addons.checks.slow_ranks:CHECKS",
        },
        "strategy_kinds": {"reproducible": "nnmpi.addons.checks.reproducible:KIND"},
        "slowed": dict.fromkeys(("slow_rank", "jitter"), "nnmpi.addons.checks.slow_ranks:slowed"),
        "single_ranks": {"verify": "nnmpi.addons.checks.verify:SINGLE_RANK"},
        "run_parts": {"verify": "nnmpi.addons.checks.verify:PARTS"},
        "fittings": {"slow_rank": "nnmpi.addons.checks.slow_ranks:FITTING"},
        "event_fields": {
            "reproducible": "nnmpi.addons.checks.slices:FIELDS",
            "slow_rank": "nnmpi.addons.checks.slow_ranks:FIELDS",
            "jitter": "nnmpi.addons.checks.slow_ranks:FIELDS",
        },
    },
)
