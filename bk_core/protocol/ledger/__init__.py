"""Ledger metadata: its value, its bytes and the state machines that change it."""
