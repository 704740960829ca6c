"""Which backend runs which nodes, by measurement on this machine."""
