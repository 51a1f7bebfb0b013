"""How do workers with batches of their own divide the parameters, gradients and optimizer state of one model?"""
