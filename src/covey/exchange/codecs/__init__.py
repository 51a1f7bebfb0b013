"""How is a vector written with fewer bytes?"""
