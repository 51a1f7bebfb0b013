"""How does the model of a run become a version in a store?"""
