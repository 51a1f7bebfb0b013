"""How is a role performed in a process of its own, and how does a launcher lead many of them?"""
