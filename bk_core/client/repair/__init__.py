"""Checks and repairs of ledgers, and their reports."""
