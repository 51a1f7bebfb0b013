"""Which stripes of far data are near: on this host's disk, or on a peer's?"""
