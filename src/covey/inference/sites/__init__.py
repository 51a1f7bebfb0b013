"""How do replicas run on the hosts of an engine? A process on each host starts them, and relays what they say."""
