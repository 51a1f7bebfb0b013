"""What answers requests, and within which time? Front and replicas as role programs; `covey serve` runs them."""
