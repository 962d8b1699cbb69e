"""Decisions of a client between its ledgers and the world: who is suspect, which address counts, how long an outage is borne.

suspicion.py  bookies whose connections broke, and when they are asked again
addresses.py  addresses of bookies while the metadata store answers, and while it does not
shortage.py   connections that this host cannot make, which no bookie is blamed for
outage.py     how long waits outlive an outage of the metadata store, and what is said about it
"""
