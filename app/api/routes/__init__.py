"""Endpoints, one file a resource."""
