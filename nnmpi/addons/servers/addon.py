"""The parameter server: the last ranks hold the parameters, all others compute gradients.

5 ranks, 2 servers   rank 0 1 2  workers: push gradients, pull parameters         (client.py)
                     rank 3      the first server; it decides when an epoch ends  (server.py)
                     rank 4      another server

flat   [ a a a a a a | b b b b b b ]     each server updates its slice of all parameters
           rank 3        rank 4

bsp, ssp and asp differ only in how many steps a worker may be ahead of the slowest one: 0, a given
number, or any number.
"""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.addons.servers",),
    uses=("averaging",),
    rows={
        "options": {"servers": "nnmpi.addons.servers.options:ADDED"},
        "texts": {
            "servers": "nnmpi.addons.servers.text:SERVERS",
            "staleness": "nnmpi.addons.servers.text:STALENESS",
        },
        "checks": {"servers": "nnmpi.addons.servers.kind:CHECKS"},
        "strategy_kinds": {"servers": "nnmpi.addons.servers.kind:KIND"},
        "event_fields": {"servers": "nnmpi.addons.servers.strategy:FIELDS"},
        "fittings": {"servers": "nnmpi.addons.servers.kind:FITTING"},
    },
)
