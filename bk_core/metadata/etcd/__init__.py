"""The metadata store on etcd. ``store`` has the class; ``bk_core.metadata.open_store`` chooses it."""
