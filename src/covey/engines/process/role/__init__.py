"""What does a role's process do?"""
