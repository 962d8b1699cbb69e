"""Objects to explore a cluster with, in a notebook or a program: ledgers as a table, one ledger, the messages of a client."""
