"""Ledgers and logs in and out of files, and from ledger to ledger."""
