"""From a plan to a problem of memory planning: aliases, buffers, steps, spilling."""
