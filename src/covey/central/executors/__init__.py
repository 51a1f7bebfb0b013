"""How do logical executors, more than there are workers, move between these?"""
