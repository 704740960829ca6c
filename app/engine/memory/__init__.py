"""Dynamic storage allocation, apart from any graph."""
