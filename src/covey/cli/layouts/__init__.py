"""How is a model divided among machines? The commands that say so."""
