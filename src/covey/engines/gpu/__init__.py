"""How do roles on one GPU read each other's tensors?"""
