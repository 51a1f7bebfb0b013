"""How does a worker compute gradients that tell little about any one sample?"""
