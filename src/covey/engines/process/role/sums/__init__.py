"""Where do members of a sum on one host find each other's numbers?"""
