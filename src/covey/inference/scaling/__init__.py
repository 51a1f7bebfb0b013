"""How many replicas does the load need? A role program that starts and retires them."""
