"""Stage 1: the training loop, supervised learning, and language models as a source of replies."""
