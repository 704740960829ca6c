"""Graph algorithms of partitioning: convex sub-graphs and minimum cuts."""
