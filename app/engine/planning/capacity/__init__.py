"""The capacity of a deployed model: requests that a machine answers in time, and the deployment that does."""
