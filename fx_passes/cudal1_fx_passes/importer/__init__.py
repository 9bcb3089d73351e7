"""From a region of an FX graph to a program: named axes by unification, one lowering an aten operator.

from_fx.py -> lower_*.py (operations over atoms, draft.py, unify.py) -> emit.py (a Program)
"""
