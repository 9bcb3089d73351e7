"""What kernels take on a GPU: measured variants as files, one program's measurement, the judge's own process."""
