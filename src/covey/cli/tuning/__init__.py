"""How does a person ask for a search?"""
