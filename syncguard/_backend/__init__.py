"""The parts of ``syncguard.backend``, which is the module to import them from.

Apart from it, because ``lock()`` is written against these protocols, and ``syncguard.backend`` also
hands out what is built on ``lock()``.
"""
