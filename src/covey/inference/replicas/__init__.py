"""Who computes? Replicas: their program, their processes, and the links to the front."""
