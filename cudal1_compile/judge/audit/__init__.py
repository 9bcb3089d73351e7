"""The judge's own examination: attacks that it must reject and honest kernels that it must not refuse."""
