"""How are the output units of fully connected layers divided among workers?"""
