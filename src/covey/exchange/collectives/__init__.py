"""In which pattern is a vector summed over a group?"""
