"""This package moves bytes and time: the reactor thread, its timers, and connections to bookies."""
