"""The traffic between a client and a bookie: frames, the two protocols, and their selection (wire-protocol.md 2-6)."""
