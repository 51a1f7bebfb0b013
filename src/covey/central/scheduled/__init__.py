"""In which order do slices of a model travel, and what is computed meanwhile?"""
