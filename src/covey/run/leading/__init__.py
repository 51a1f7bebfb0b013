"""Which launcher has this run? One at a time: others wait (`--standby`), or are refused."""
