"""A program as a shared library: object file, ELF, and the runtime in C."""
