"""Who performs the effects? Engines take a plan of addresses and programs; they know no strategy."""
