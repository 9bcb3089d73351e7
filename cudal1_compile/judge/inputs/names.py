"""What distributions of inputs are called that others than their makers ask for."""

LITERAL_TARGETED, LITERAL_LARGE = "named", "named_large"
SPARSE_SPIKE = "needle"
TIED_VALUES = "coincident"
