"""The common part of all stores that keep their nodes by path, as ZooKeeper does."""
