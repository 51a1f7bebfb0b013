"""How are models averaged that were trained alone for a while?"""
