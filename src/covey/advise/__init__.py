"""Which strategy should win here, and why?"""
