"""How do workers and a centre pull at each other?"""
