"""Messages of etcd's API: ``make proto`` made the module of ``etcd.proto``."""
