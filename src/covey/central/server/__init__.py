"""How do servers hold the parameters, and who may read them when?"""
