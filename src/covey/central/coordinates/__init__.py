"""How does one variable after another find its minimum? Strategies that move a few coordinates of a linear model."""
