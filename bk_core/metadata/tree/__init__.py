"""What all stores share that keep their nodes by path, as ZooKeeper does."""
