"""Running programs: executors, inputs, oracle, verification, benchmarks."""
