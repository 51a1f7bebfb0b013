"""How does a mesh go on when machines come and go? With another layout, which learns the same."""
