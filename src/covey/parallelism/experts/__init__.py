"""How are the experts of a layer divided among workers, each of which has batches of its own?"""
