"""A site that forks the parent of its roles, as those of torchrun's agent do: it need not import torch again."""

from covey.engines.cluster import site
from covey.engines.process.forking.role_processes import forked

if __name__ == "__main__":
    site.main(forked)
