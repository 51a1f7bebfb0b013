"""How does the keeper of stripes run on a host, and in virtual time?"""
