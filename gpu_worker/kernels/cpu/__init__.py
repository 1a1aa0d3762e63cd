"""Kernels in C++ for CPUs: the sources, how they are compiled, and what calls them."""
