"""Is one candidate right, and does it touch only what is its own? Cases, guarded memory, adequacy of the cases."""
