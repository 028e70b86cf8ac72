"""The parts of ``syncguard.backend``. Private: import them from there.

They are separate modules to avoid an import cycle: ``lock()`` imports these protocols, and
``syncguard.backend`` imports ``lock()``.
"""
