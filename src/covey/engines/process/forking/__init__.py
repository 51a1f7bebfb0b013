"""Who starts the processes of a run? Fork servers, which import torch once and fork every role."""
