"""Checkpoints: the state of all ranks of a run between two steps, on disk.

    DIR/step-00001200/manifest.json            lists the arrays of each file, with digests;
                                               written last
                      rank-00000.safetensors   the arrays that rank 0 has written, as in its memory
                      rank-00001.safetensors
    DIR/.step-00001300.part/                   a checkpoint that is being written
    DIR/.lock                                  the lock of the run that writes there

A checkpoint is valid if its manifest matches its digest. No file contains pickled objects.
"""
