"""Which layers travel, or are cut, in a way of their own?"""
