"""Kernels at run time: found by entry id, called with a graph's tensors, compared at first use.

Where one fails, aten runs its region.
"""
