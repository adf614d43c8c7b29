"""The metadata store on ZooKeeper: operations, watches, transactions, identity, errors."""
