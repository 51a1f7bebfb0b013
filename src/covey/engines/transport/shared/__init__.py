"""What do roles of one host share: memory for tensors, signs and bells, and lanes for small frames."""
