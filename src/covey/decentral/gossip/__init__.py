"""How do workers agree by speaking with a few others at a time?"""
