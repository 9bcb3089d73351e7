"""What the judge is measured with: right kernels and wrong ones, told apart without the judge."""
