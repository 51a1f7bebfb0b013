"""Where should a model be cut, in which order do its stages work, and what would a step take?"""
