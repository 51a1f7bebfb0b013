"""Where are the shards of a data set, and how are samples read out of them?"""
