"""Worker processes and the confined children that parse and run models."""
