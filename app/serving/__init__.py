"""Deployed models: executor processes, and how the API reaches them. Knows no HTTP."""
