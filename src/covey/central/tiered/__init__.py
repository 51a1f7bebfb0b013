"""How do parameters live on machines of which some may vanish?"""
