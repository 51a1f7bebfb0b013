"""How do workers write one vector in shared memory?"""
