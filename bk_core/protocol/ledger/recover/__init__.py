"""The recovery of one ledger: fence, read forward, write back, close."""
