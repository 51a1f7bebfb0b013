"""How does every worker own a slice of the parameters?"""
