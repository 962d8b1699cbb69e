"""The handles of one ledger: writing, reading, and the bounds of what is under way."""
