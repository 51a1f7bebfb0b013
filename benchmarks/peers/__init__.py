"""How others train the same task on the same hosts: one script for each framework, and what they and covey share."""
