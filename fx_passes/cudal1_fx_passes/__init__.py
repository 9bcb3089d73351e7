"""From an FX graph to regions: canonical programs, partition, fingerprints, splice."""
