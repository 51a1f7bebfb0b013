"""How do clients take part? Rounds, the roles of the service, and what a client does when it is chosen."""
