"""Entry bodies and explicit LAC packets: layout, digests and the keys derived from a ledger password (wire-protocol.md 7)."""
