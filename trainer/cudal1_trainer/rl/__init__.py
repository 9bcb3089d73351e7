"""Stages 2 and 3: groups of sampled replies, the judge's outcomes, advantages, the policy's step."""
