"""Writes: from the plan over the tasks to the commit."""
