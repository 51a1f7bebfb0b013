"""What is being trained? A model as flat vectors, its replicas, batches, optimizers and gradients."""
