"""The metadata store on ZooKeeper.

``store`` says what each operation means, ``session`` keeps the connection, ``watches`` the watches.
``kazoo_api`` and ``errors`` are the border to kazoo.
"""
