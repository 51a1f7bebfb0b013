"""How many samples does a strategy need, and how long is its step, when it is tried in virtual time?"""
