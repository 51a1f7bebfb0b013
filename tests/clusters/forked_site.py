"""A site that forks its fork server from itself: the process that started it has imported torch already."""

from covey.engines.cluster import site
from covey.engines.process.forking.role_processes import forked

if __name__ == "__main__":
    site.main(forked)
