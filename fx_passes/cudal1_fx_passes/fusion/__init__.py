"""Cuts an FX graph into regions: growth of groups, products and their surroundings, gradients taken apart."""
