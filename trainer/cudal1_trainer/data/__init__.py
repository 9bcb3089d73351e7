"""Training pairs: corpus, chunks made ahead, batches in a fixed order."""
