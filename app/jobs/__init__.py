"""Durability and processes; knows no HTTP and no pass."""
