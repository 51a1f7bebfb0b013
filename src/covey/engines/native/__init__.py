"""How do roles sum by other means than covey's links? One module for each library that has an all-reduce of its own."""
