"""How do workers keep equal copies of the model and the optimizer?"""
