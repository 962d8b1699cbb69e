"""Reading a ledger: ranges, tails, LACs and the order of replicas."""
