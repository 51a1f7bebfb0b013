"""Which model came from where? Versions of trained models, by name, with their lineage; `covey models` shows them."""
