"""How does a federated run meet an engine?"""
