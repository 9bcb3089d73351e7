"""What the judge is measured with: kernels that cheat, right ones, and mutants, told apart without it.

attacks*.py, blind*.py (cheats)   honest*.py, subjects.py (right)   mutate.py (one token wrong)
witness.py and second_oracle.py say what is right by other means; rates.py gives the rows of `cudal1 audit`
"""
