"""What do roles of one host share? Memory for tensors, signs and bells, and lanes for small frames."""
