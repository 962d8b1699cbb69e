"""The metadata store on ZooKeeper. ``store`` has the class; ``bk_core.metadata.open_store`` chooses it."""
