"""Which schedule is likely fast: a regression over measured times, its features, and its bundled weights."""
