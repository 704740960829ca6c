"""Sessions of passes: budgets, autotuning, backend assignment, precision."""
