"""Checkpoints: what the ranks of a run had between two steps, on disk.

    DIR/step-00001200/manifest.json            what is where, with digests; written last
                      rank-00000.safetensors   what a rank has written, as it lay there
                      rank-00001.safetensors
    DIR/.step-00001300.part/                   one that is being written
    DIR/.lock                                  of the run that writes there

A checkpoint exists when its manifest verifies. Nothing in it is unpickled.
"""
