"""What ``lock()`` and its asyncio twin are made of. Private: import from ``syncguard``."""
