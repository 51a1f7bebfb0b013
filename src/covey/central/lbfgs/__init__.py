"""How does L-BFGS run over shards of its vectors?"""
