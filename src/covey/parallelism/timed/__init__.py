"""What takes the place of a part of a model where only time counts?"""
