"""How does a run look on a terminal while it goes?"""
