"""Kernels for CPUs: plain functions on addresses and sizes, compiled by numba.

A kernel allocates nothing and imports nothing of the engine. Its parameters are typed
addresses and int64 sizes, then `begin, end`: the half-open range of units of work this call
computes (rows, planes, tiles; the caller states how many there are), then, if it uses scratch
of its own per thread, `thread`. A scalar that is no integer comes as the address of a
one-element array.
"""
