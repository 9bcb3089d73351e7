"""The network and its tokenizer, sampling from it, and its checkpoints in one or several processes."""
