"""A kernel as text: the parts of a reply, its launch plan, and the one tokeniser that reads candidates' code."""
