"""What outputs must be: float64 results, how far honest rounding may move them, and the comparison."""
