"""Proves of a layout's step, before it runs, that it sums what has to be summed. What that is
follows from the model and from where its parts are, not from what makes the lists of operations.

    Graph, placement ──► shares.py ──► what ranks have of each gradient, and what is due ──┐
                                                                                           ├─► proof
    lists of ranks, exchanges of their operations and passes ──► actions.py ───────────────┘"""

from nnmpi.addons import AddOn

ADD_ON = AddOn(modules=("nnmpi.addons.proof",))
