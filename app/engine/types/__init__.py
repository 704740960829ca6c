"""Values without a graph: layouts, storage types, targets, options, errors."""
