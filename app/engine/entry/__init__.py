"""Entry points of the engine: optimize, run one operator, serve a model."""
