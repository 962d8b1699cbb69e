"""Logs over ledgers: lists, writers, readers and the janitor."""
