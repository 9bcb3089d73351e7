"""Kernel templates of reductions, scans, pooling windows and transposing copies.

one kernel a group (grouped, online, ragged), two kernels (split_*), one kernel whose blocks wait for each other by
a semaphore (semaphore_reduction).
"""
