"""Runs that lose processes: covey beside torchrun and Ray Train, with the same model and the same optimizer."""
