"""Images that are cut by rows among the ranks along tp (spatial parallelism), where a layout says
so: `--layout rows:tp`, or `LAYER=spatial`.

Each rank has the whole weights of a layer, and some rows of each image. Depending on which of input
and output are divided by rows:

    input      output                           then ranks
    rows       rows       spatial               exchange the rows that windows need of others, and
                                                their gradients; sum the gradients of parameters,
                                                once a step
    whole      rows       spatial               also gather the gradient of the input
    rows       whole      spatial, gathered     also gather the output
    rows       whole      spatial               sum the means of rows
"""
