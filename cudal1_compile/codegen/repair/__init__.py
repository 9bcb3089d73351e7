"""Repairs of a reply's arithmetic, which a small model does not do: its plan lines, then its code."""
