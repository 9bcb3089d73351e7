"""A sitecustomize.py for processes that shall not find some modules: what takes seconds to import, for nothing."""

WITHOUT = """
import sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name in {names!r}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Finder())
"""
