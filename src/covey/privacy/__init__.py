"""What may nobody see? Secure sums and differential privacy, which know no network and no engine."""
