"""All that touches Inductor's private classes: the hook, the splicing pass, IR nodes of kernels, sizes, layouts.

collect.py (the graphs that the hook will see) -> splice.py (regions become cudal1::fused) -> fused_lowering.py
"""
