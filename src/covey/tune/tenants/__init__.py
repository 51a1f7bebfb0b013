"""Whose model is trained next, where several tasks share the slots?"""
