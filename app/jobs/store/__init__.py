"""Tables and blobs."""
