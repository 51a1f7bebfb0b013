"""How does a launcher start, watch and end the processes of a run?"""
