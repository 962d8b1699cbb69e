"""The decisions of a client between its ledgers and the world: which bookies are suspect, which address counts, and how long an outage of
the metadata store is waited out.

suspicion.py  bookies whose connections broke, and when they are asked again
addresses.py  addresses of bookies while the metadata store answers, and while it does not
shortage.py   connections that this host cannot make, which no bookie is blamed for
outage.py     the time for which waits outlive an outage of the metadata store, and the messages about it
reach.py      the reason why a metadata store gives no session
on_demand.py  a session that is opened when something is asked, and ends when nothing was asked for a while
"""
