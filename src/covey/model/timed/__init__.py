"""What takes the place of a replica where only time counts?"""
