"""How are tensors compressed on a GPU? `levels` and `choosing` are called; the kernels are Triton's.

`launch` starts them, and hears what they have found: `rows` (small blocks), `flat` (large ones), `whole` (one block of
all), `choice` (a threshold) and `top` (the k largest).
"""
