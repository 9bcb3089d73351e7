"""Fusion: cuts an FX graph into regions by growing groups; products with their surroundings; gradients apart."""
