"""How fast: baselines, candidates and baselines in interleaved rounds, a speedup that can be trusted."""
