"""How do workers agree that each train alone? Every worker owns an optimizer state that may differ from the others'."""
