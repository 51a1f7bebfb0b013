"""Which covey is this?"""

__version__ = "0.1.0"
