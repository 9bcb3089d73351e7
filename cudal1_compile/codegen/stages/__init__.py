"""What all templates share: a program cut into stages, loop variables over axes, expressions, kernels' text."""
