"""How do the stages of a cut model train together?"""
