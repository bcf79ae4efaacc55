"""LSTM, GRU and RNN."""

from nnmpi.addons import AddOn, places

ADD_ON = AddOn(
    modules=("nnmpi.addons.recurrent",),
    rows={
        "names": {
            "nn.utils.rnn": "nnmpi.addons.recurrent.rnn",
            **places(
                {
                    "addons.recurrent.cells": "GRUCell LSTMCell RNNCell",
                    "addons.recurrent.layers": "GRU LSTM RNN",
                },
                "nn.",
            ),
        },
        "modules": {
            "nn.layers.recurrent": "nnmpi.addons.recurrent.layers",
            "nn.layers.recurrent_cells": "nnmpi.addons.recurrent.cells",
            "nn.packed": "nnmpi.addons.recurrent.packed",
            "nn.utils.rnn": "nnmpi.addons.recurrent.rnn",
        },
        "classes_of_step": {
            "recurrent.ops": "nnmpi.addons.recurrent.ops",
            "recurrent.distinct_rows": "nnmpi.addons.recurrent.distinct_rows",
        },
        "op_types": {
            "nnmpi.addons.recurrent.ops:recurrent": "nnmpi.addons.recurrent.ops:in_16_bits"
        },
        "of_step": {"recurrent": "nnmpi.addons.recurrent"},
    },
)
