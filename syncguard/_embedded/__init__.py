"""What the backends without a server share: memory and SQLite. Private.

An operation is a function of a ``Transaction``. The store gives it one, alone and all or nothing,
so each operation is written once, for both stores, blocking and asyncio.
"""
