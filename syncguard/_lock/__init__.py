"""The parts of ``lock()``, blocking and asyncio. Private: import from ``syncguard``."""
