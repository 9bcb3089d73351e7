"""From one Dynamo graph to a callable: plan, then compile.

compile.py: stored plan | survey.py -> planner.py (lookup, synthesis) -> Inductor with kernels -> choice.py
background.py and shadow.py are ways to run it; summary.py and explanation.py tell what was decided
"""
