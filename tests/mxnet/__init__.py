"""Symbols that MXNet itself writes, compared with its own outputs: `make test-mxnet`."""
