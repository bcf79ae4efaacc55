"""How often ZeRO 3 gathers each bucket in a step: the walk of its slots, on paper.

Bucket b comes into slot b mod SLOTS. Whoever uses a bucket starts the gather of the next one, in the
direction of the pass (see `parallel/zero/weight_slots.py`).
"""
