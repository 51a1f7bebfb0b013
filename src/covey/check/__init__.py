"""Does a strategy or codec from outside keep the promises that those of covey keep?"""
