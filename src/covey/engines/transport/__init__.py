"""How do messages get from one role to another?"""
