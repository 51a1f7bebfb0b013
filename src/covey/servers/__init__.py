"""What do all servers and masters have in common? Their loop and its end, pieces, coders, buffers, notes."""
