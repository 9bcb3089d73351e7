"""Random tasks: endless, seeded programs like the regions that real models give. See generate.py."""

from cudal1_trainer.tasks.generate import FAMILIES, generate_task, structure

__all__ = ["FAMILIES", "generate_task", "structure"]
