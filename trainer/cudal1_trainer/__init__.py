"""Makes the bundled model.

tasks/ (programs) -> scores/ (what kernels take on a GPU) -> data/ (pairs of prompt and reply)
                  -> sft/ (supervised) -> rl/ (self-supervised, contrastive)
model/: the network, its tokenizer, sampling, checkpoints
"""
