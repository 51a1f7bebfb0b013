"""What goes on the wire, in which pattern?"""
