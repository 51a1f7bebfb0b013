"""Runs that lose processes: covey beside torchft, torchrun and Ray Train, with the same model and optimizer."""
