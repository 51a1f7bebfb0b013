"""How do workers train on cached parameters, and bound how old those are?"""
