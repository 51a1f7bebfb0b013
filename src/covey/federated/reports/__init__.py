"""What of a client's update is sent?"""
