"""How are the layers of a model divided among workers that compute on the same batch?"""
