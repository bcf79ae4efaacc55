"""Checkpoints: the state of all ranks of a run between two steps, on disk.

    DIR/step-00001200/manifest.json            what is in which file, with digests; written last
                      rank-00000.safetensors   what a rank has written, in its memory layout
                      rank-00001.safetensors
    DIR/.step-00001300.part/                   a checkpoint that is being written
    DIR/.lock                                  the lock of the run that writes there

A checkpoint exists if its manifest verifies. Nothing in it is unpickled.
"""
