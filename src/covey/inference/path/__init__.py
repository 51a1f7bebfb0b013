"""What does a request cost beside the model? Measured on this machine, and put into virtual time."""
