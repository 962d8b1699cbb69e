"""The embedded bookie: the rules of ``bk_core.protocol.bookie`` on a socket, with entries and fence marks kept in LMDB."""
