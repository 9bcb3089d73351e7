"""Kernel templates: from a program to kernels whose schedules are known to be legal.

    program -> stages/ (cut at reductions and products, each with a schedule)
            -> products/, reductions/, stages/pointwise.py (the code of one stage) -> lower.py (whole kernels)
            -> strategies.py (which schedules a program may have) -> templates.py (replies)
            -> edits/ (what a lowered kernel may have besides: blocks off the lists, unrolling, order)
    prior/ says which schedule is likely fast

The bundled model learns from what they write.
"""
