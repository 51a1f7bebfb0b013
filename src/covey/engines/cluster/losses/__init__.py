"""How does a run on a cluster go on when hosts are lost?"""
