"""Inputs of a program: distributions, each for the mistakes that it uncovers, inside of each input's domain."""
