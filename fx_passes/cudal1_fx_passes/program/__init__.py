"""The program: what a region computes. Its text, canonical form and fingerprint, its meaning, its aten code."""
