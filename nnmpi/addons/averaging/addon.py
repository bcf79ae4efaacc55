"""Training with less communication: data-parallel replicas (along dp) make steps alone, and now and
then take the mean of their parameters.

rounds.py   the strategy: rounds of steps, after which all replicas are equal
outer.py    local steps (local SGD, DiLoCo): an outer optimizer applies the mean change
gossip.py   means with neighbours after each step
means.py    the values of a replica as one array, and means over replicas
"""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.addons.averaging",),
    uses=("compression",),
    rows={
        "options": {"averaging": "nnmpi.addons.averaging.options:ADDED"},
        "texts": {"every": "nnmpi.addons.averaging.rounds:TEXTS"},
        "checks": {"averaging": "nnmpi.addons.averaging.fragments:CHECKS"},
        "strategy_kinds": {"averaging": "nnmpi.addons.averaging.rounds:KIND"},
    },
)
