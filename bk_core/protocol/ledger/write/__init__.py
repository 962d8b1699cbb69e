"""The writer of one ledger. ``writer`` has the theory of operation."""
