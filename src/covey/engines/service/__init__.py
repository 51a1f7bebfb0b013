"""How do guests on real machines reach a service? Its port, the links of guests, and programs in real time."""
