"""What may the service not see of its clients, and what may nobody see of them afterwards?"""
